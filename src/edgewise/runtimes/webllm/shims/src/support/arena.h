// Memory that is given back all at once: each request is an allocation of its own.
#ifndef EDGEWISE_SHIM_SUPPORT_ARENA_H_
#define EDGEWISE_SHIM_SUPPORT_ARENA_H_

#include <cstddef>
#include <memory>
#include <vector>

namespace tvm {
namespace support {

class Arena {
 public:
  // For plain data only: nothing is constructed or destroyed.
  template <typename T>
  T* allocate_(int count = 1) {
    pieces_.push_back(std::make_unique<std::max_align_t[]>(
        (sizeof(T) * static_cast<size_t>(count) + sizeof(std::max_align_t) - 1) /
        sizeof(std::max_align_t)));
    return reinterpret_cast<T*>(pieces_.back().get());
  }

  void RecycleAll() { pieces_.clear(); }
  void FreeAll() { pieces_.clear(); }

 private:
  std::vector<std::unique_ptr<std::max_align_t[]>> pieces_;
};

}  // namespace support
}  // namespace tvm

#endif  // EDGEWISE_SHIM_SUPPORT_ARENA_H_
