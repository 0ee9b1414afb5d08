// Base64 on top of another stream: everything is held until the end, then converted at once.
#ifndef EDGEWISE_SHIM_SUPPORT_BASE64_H_
#define EDGEWISE_SHIM_SUPPORT_BASE64_H_

#include <tvm/ffi/extra/base64.h>
#include <tvm/support/io.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace tvm {
namespace support {

class Base64OutStream : public Stream {
 public:
  explicit Base64OutStream(Stream* out) : out_(out) {}

  using Stream::Read;
  using Stream::Write;

  size_t Read(void*, size_t) final { return 0; }

  size_t Write(const void* data, size_t size) final {
    plain_.append(static_cast<const char*>(data), size);
    return size;
  }

  void Finish() {
    const ffi::String text =
        ffi::Base64Encode(TVMFFIByteArray{plain_.data(), plain_.size()});
    out_->Write(static_cast<const void*>(text.data()), text.size());
    plain_.clear();
  }

 private:
  Stream* out_;
  std::string plain_;
};

class Base64InStream : public Stream {
 public:
  explicit Base64InStream(Stream* in) : in_(in) {}

  using Stream::Read;
  using Stream::Write;

  void InitPosition() {
    std::string text;
    char piece[4096];
    for (size_t got; (got = in_->Read(static_cast<void*>(piece), sizeof(piece))) != 0;) {
      text.append(piece, got);
    }
    plain_ = ffi::Base64Decode(TVMFFIByteArray{text.data(), text.size()});
    position_ = 0;
  }

  size_t Read(void* data, size_t size) final {
    const size_t taken = std::min(size, plain_.size() - position_);
    if (taken != 0) std::memcpy(data, plain_.data() + position_, taken);
    position_ += taken;
    return taken;
  }

  size_t Write(const void*, size_t) final { return 0; }

 private:
  Stream* in_;
  ffi::Bytes plain_;
  size_t position_ = 0;
};

}  // namespace support
}  // namespace tvm

#endif  // EDGEWISE_SHIM_SUPPORT_BASE64_H_
