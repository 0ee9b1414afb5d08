// How values lie in a module's bytes: numbers little-endian, a 64-bit count before every container.
#ifndef EDGEWISE_SHIM_TVM_SUPPORT_SERIALIZER_H_
#define EDGEWISE_SHIM_TVM_SUPPORT_SERIALIZER_H_

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/endian.h>
#include <tvm/ffi/string.h>
#include <tvm/support/io.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tvm {
namespace support {

static_assert(TVM_FFI_IO_NO_ENDIAN_SWAP, "these shims serve little-endian targets only");

// A damaged count must not become an allocation: containers grow as their items arrive.
template <typename Item, typename Take>
inline bool ReadItems(Stream* stream, Take take) {
  uint64_t count = 0;
  if (stream->Read(&count, sizeof(count)) != sizeof(count)) return false;
  for (uint64_t i = 0; i < count; ++i) {
    Item item;
    if (!Serializer<Item>::Read(stream, &item)) return false;
    take(std::move(item));
  }
  return true;
}

inline void WriteCount(Stream* stream, size_t count) {
  const uint64_t wide = count;
  stream->Write(&wide, sizeof(wide));
}

template <typename T>
struct Serializer<T, std::enable_if_t<std::is_arithmetic_v<T>>> {
  static constexpr bool enabled = true;
  static void Write(Stream* stream, const T& value) { stream->Write(&value, sizeof(T)); }
  static bool Read(Stream* stream, T* value) { return stream->Read(value, sizeof(T)) == sizeof(T); }
};

template <typename T>
struct Serializer<T, std::enable_if_t<std::is_enum_v<T>>> {
  static constexpr bool enabled = true;
  static void Write(Stream* stream, const T& value) {
    Serializer<int32_t>::Write(stream, static_cast<int32_t>(value));
  }
  static bool Read(Stream* stream, T* value) {
    int32_t number = 0;
    if (!Serializer<int32_t>::Read(stream, &number)) return false;
    *value = static_cast<T>(number);
    return true;
  }
};

template <>
struct Serializer<std::string> {
  static constexpr bool enabled = true;
  static void Write(Stream* stream, const std::string& text) {
    WriteCount(stream, text.size());
    stream->Write(text.data(), text.size());
  }
  static bool Read(Stream* stream, std::string* text) {
    constexpr uint64_t kStep = 1 << 20;
    uint64_t left = 0;
    if (!Serializer<uint64_t>::Read(stream, &left)) return false;
    text->clear();
    while (left > 0) {
      const size_t step = static_cast<size_t>(left < kStep ? left : kStep);
      const size_t before = text->size();
      text->resize(before + step);
      if (stream->Read(&(*text)[before], step) != step) return false;
      left -= step;
    }
    return true;
  }
};

template <>
struct Serializer<ffi::String> {
  static constexpr bool enabled = true;
  static void Write(Stream* stream, const ffi::String& text) {
    WriteCount(stream, text.size());
    stream->Write(text.data(), text.size());
  }
  static bool Read(Stream* stream, ffi::String* text) {
    std::string read;
    if (!Serializer<std::string>::Read(stream, &read)) return false;
    *text = ffi::String(std::move(read));
    return true;
  }
};

template <>
struct Serializer<DLDataType> {
  static constexpr bool enabled = true;
  static void Write(Stream* stream, const DLDataType& type) {
    stream->Write(type.code);
    stream->Write(type.bits);
    stream->Write(type.lanes);
  }
  static bool Read(Stream* stream, DLDataType* type) {
    return stream->Read(&type->code) && stream->Read(&type->bits) && stream->Read(&type->lanes);
  }
};

template <>
struct Serializer<DLDevice> {
  static constexpr bool enabled = true;
  static void Write(Stream* stream, const DLDevice& device) {
    stream->Write(device.device_type);
    stream->Write(device.device_id);
  }
  static bool Read(Stream* stream, DLDevice* device) {
    return stream->Read(&device->device_type) && stream->Read(&device->device_id);
  }
};

template <typename First, typename Second>
struct Serializer<std::pair<First, Second>> {
  static constexpr bool enabled = true;
  static void Write(Stream* stream, const std::pair<First, Second>& pair) {
    Serializer<First>::Write(stream, pair.first);
    Serializer<Second>::Write(stream, pair.second);
  }
  static bool Read(Stream* stream, std::pair<First, Second>* pair) {
    return Serializer<First>::Read(stream, &pair->first) &&
           Serializer<Second>::Read(stream, &pair->second);
  }
};

template <typename T>
struct Serializer<std::vector<T>> {
  static constexpr bool enabled = true;
  static void Write(Stream* stream, const std::vector<T>& values) {
    WriteCount(stream, values.size());
    stream->WriteArray(values.data(), values.size());
  }
  static bool Read(Stream* stream, std::vector<T>* values) {
    values->clear();
    return ReadItems<T>(stream, [&](T&& item) { values->push_back(std::move(item)); });
  }
};

template <typename T>
struct Serializer<ffi::Array<T>> {
  static constexpr bool enabled = true;
  static void Write(Stream* stream, const ffi::Array<T>& values) {
    WriteCount(stream, values.size());
    for (const T& value : values) Serializer<T>::Write(stream, value);
  }
  static bool Read(Stream* stream, ffi::Array<T>* values) {
    ffi::Array<T> read;
    if (!ReadItems<T>(stream, [&](T&& item) { read.push_back(std::move(item)); })) return false;
    *values = std::move(read);
    return true;
  }
};

template <typename Key, typename Value>
struct Serializer<std::unordered_map<Key, Value>> {
  using Entry = std::pair<Key, Value>;
  static constexpr bool enabled = true;
  static void Write(Stream* stream, const std::unordered_map<Key, Value>& map) {
    WriteCount(stream, map.size());
    for (const auto& entry : map) Serializer<Entry>::Write(stream, entry);
  }
  static bool Read(Stream* stream, std::unordered_map<Key, Value>* map) {
    map->clear();
    return ReadItems<Entry>(stream, [&](Entry&& entry) { map->insert(std::move(entry)); });
  }
};

template <typename Key, typename Value>
struct Serializer<ffi::Map<Key, Value>> {
  static constexpr bool enabled = true;
  static void Write(Stream* stream, const ffi::Map<Key, Value>& map) {
    WriteCount(stream, map.size());
    for (const auto& entry : map) {
      Serializer<Key>::Write(stream, entry.first);
      Serializer<Value>::Write(stream, entry.second);
    }
  }
  static bool Read(Stream* stream, ffi::Map<Key, Value>* map) {
    uint64_t count = 0;
    if (!Serializer<uint64_t>::Read(stream, &count)) return false;
    ffi::Map<Key, Value> read;
    for (uint64_t i = 0; i < count; ++i) {
      Key key;
      Value value;
      if (!Serializer<Key>::Read(stream, &key) || !Serializer<Value>::Read(stream, &value)) {
        return false;
      }
      read.Set(key, value);
    }
    *map = std::move(read);
    return true;
  }
};

}  // namespace support
}  // namespace tvm

#endif  // EDGEWISE_SHIM_TVM_SUPPORT_SERIALIZER_H_
