// Half precision: the two conversions, under the names that TVM's sources call them by.
#ifndef EDGEWISE_SHIM_BUILTIN_FP16_H_
#define EDGEWISE_SHIM_BUILTIN_FP16_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace edgewise_shim {

inline float HalfToFloat(uint16_t half) {
  const int exponent = (half >> 10) & 0x1f;
  const int fraction = half & 0x3ff;
  float magnitude;
  if (exponent == 0x1f) {
    magnitude = fraction ? std::numeric_limits<float>::quiet_NaN()
                         : std::numeric_limits<float>::infinity();
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(fraction), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(fraction | 0x400), exponent - 25);
  }
  return (half & 0x8000) ? -magnitude : magnitude;
}

// Rounds to nearest, ties to even, as the default rounding mode of nearbyint does.
inline uint16_t DoubleToHalf(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (magnitude == 0.0) return sign;
  if (std::isnan(value)) return sign | 0x7e00;
  if (magnitude >= 65520.0) return sign | 0x7c00;  // halfway above the largest half
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude = f * 2^exponent, f in [0.5, 1)
  const int shift = exponent < -13 ? -24 : exponent - 11;
  const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, -shift)));
  // A carry out of the fraction lands in the exponent field, which is what rounding up means.
  const uint32_t biased = shift == -24 ? 0 : static_cast<uint32_t>(shift + 24);
  return sign | static_cast<uint16_t>((biased << 10) + units);
}

}  // namespace edgewise_shim

template <typename From, typename FromBits, int kFromFraction, typename To, typename ToBits,
          int kToFraction>
inline To __truncXfYf2__(From value) {
  static_assert(std::is_floating_point_v<From> && kToFraction == 10, "to half precision only");
  return edgewise_shim::DoubleToHalf(static_cast<double>(value));
}

template <typename From, typename FromBits, int kFromFraction, typename To, typename ToBits,
          int kToFraction>
inline To __extendXfYf2__(From half) {
  static_assert(std::is_same_v<To, float> && kFromFraction == 10, "from half precision only");
  return edgewise_shim::HalfToFloat(half);
}

#endif  // EDGEWISE_SHIM_BUILTIN_FP16_H_
