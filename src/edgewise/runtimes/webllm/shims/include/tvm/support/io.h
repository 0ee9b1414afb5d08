// The byte stream that TVM's web runtime loads modules from.
#ifndef EDGEWISE_SHIM_TVM_SUPPORT_IO_H_
#define EDGEWISE_SHIM_TVM_SUPPORT_IO_H_

#include <cstddef>
#include <type_traits>

namespace tvm {
namespace support {

template <typename T, typename Enable = void>
struct Serializer;

class Stream {
 public:
  virtual ~Stream() = default;

  // Returns how many bytes were read: fewer than `size` only at the end.
  virtual size_t Read(void* data, size_t size) = 0;
  virtual size_t Write(const void* data, size_t size) = 0;

  template <typename T>
  bool Read(T* value) {
    return Serializer<T>::Read(this, value);
  }

  template <typename T>
  void Write(const T& value) {
    Serializer<T>::Write(this, value);
  }

  template <typename T>
  bool ReadArray(T* values, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (!Serializer<T>::Read(this, values + i)) return false;
    }
    return true;
  }

  template <typename T>
  void WriteArray(const T* values, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      Serializer<T>::Write(this, values[i]);
    }
  }
};

}  // namespace support
}  // namespace tvm

#include <tvm/support/serializer.h>

#endif  // EDGEWISE_SHIM_TVM_SUPPORT_IO_H_
