// A queue of bytes. It moves what is left to the front instead of wrapping around.
#ifndef EDGEWISE_SHIM_SUPPORT_RING_BUFFER_H_
#define EDGEWISE_SHIM_SUPPORT_RING_BUFFER_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

namespace tvm {
namespace support {

class RingBuffer {
 public:
  size_t bytes_available() const { return bytes_.size() - start_; }

  void Reserve(size_t size) { bytes_.reserve(start_ + size); }

  // The caller asks for no more than is available.
  void Read(void* data, size_t size) {
    if (size != 0) std::memcpy(data, bytes_.data() + start_, size);
    Drop(size);
  }

  void Write(const void* data, size_t size) {
    const char* from = static_cast<const char*>(data);
    bytes_.insert(bytes_.end(), from, from + size);
  }

  // `send` says how many of the offered bytes it took.
  template <typename Send>
  size_t ReadWithCallback(Send send, size_t size_max) {
    const size_t offered = std::min(size_max, bytes_available());
    const size_t taken = send(bytes_.data() + start_, offered);
    Drop(taken);
    return taken;
  }

  // `receive` says how many bytes of the room it filled.
  template <typename Receive>
  size_t WriteWithCallback(Receive receive, size_t size_max) {
    const size_t before = bytes_.size();
    bytes_.resize(before + size_max);
    const size_t got = receive(bytes_.data() + before, size_max);
    bytes_.resize(before + got);
    return got;
  }

 private:
  void Drop(size_t size) {
    start_ += size;
    if (start_ == bytes_.size() || start_ > 65536) {
      bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(start_));
      start_ = 0;
    }
  }

  std::vector<char> bytes_;
  size_t start_ = 0;
};

}  // namespace support
}  // namespace tvm

#endif  // EDGEWISE_SHIM_SUPPORT_RING_BUFFER_H_
