// Streams over bytes in memory.
#ifndef EDGEWISE_SHIM_SUPPORT_BYTES_IO_H_
#define EDGEWISE_SHIM_SUPPORT_BYTES_IO_H_

#include <tvm/ffi/string.h>
#include <tvm/support/io.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace tvm {
namespace support {

// Reads bytes that somebody else keeps alive.
class BytesInStream : public Stream {
 public:
  explicit BytesInStream(const std::string& bytes) : data_(bytes.data()), left_(bytes.size()) {}
  explicit BytesInStream(const ffi::Bytes& bytes) : data_(bytes.data()), left_(bytes.size()) {}
  BytesInStream(const char* data, size_t size) : data_(data), left_(size) {}

  using Stream::Read;
  using Stream::Write;

  size_t Read(void* data, size_t size) final {
    const size_t taken = std::min(size, left_);
    if (taken != 0) std::memcpy(data, data_, taken);
    data_ += taken;
    left_ -= taken;
    return taken;
  }

  size_t Write(const void*, size_t) final { return 0; }

 private:
  const char* data_;
  size_t left_;
};

// Appends to a string that somebody else keeps alive.
class BytesOutStream : public Stream {
 public:
  explicit BytesOutStream(std::string* out) : out_(out) {}

  using Stream::Read;
  using Stream::Write;

  size_t Read(void*, size_t) final { return 0; }

  size_t Write(const void* data, size_t size) final {
    out_->append(static_cast<const char*>(data), size);
    return size;
  }

 private:
  std::string* out_;
};

}  // namespace support
}  // namespace tvm

#endif  // EDGEWISE_SHIM_SUPPORT_BYTES_IO_H_
