// Pairs within a tolerance, included by each instruction set's file inside its own unnamed namespace: plain
// loops over lanes, which the compiler makes vectors of.

inline float magnitude(float x) { return __builtin_fabsf(x); }
inline double magnitude(double x) { return __builtin_fabs(x); }

template <class V>
std::int64_t count_close(const V* a, const V* e, std::int64_t n, V rtol, V atol, std::int64_t* zeros) {
  constexpr int kLanes = 16;
  constexpr std::int64_t kAtOnce = std::int64_t{1} << 20;  // counts that a float holds exactly, in each lane
  std::int64_t all = 0, none = 0;
  while (n > 0) {
    const std::int64_t some = n < kAtOnce ? n : kAtOnce;
    V close[kLanes] = {}, zero[kLanes] = {};
    const auto test = [&](int lane, V x, V y) {
      const V difference = magnitude(x - y), size = magnitude(y);
      const V allowed = atol + rtol * size + 0 * size;  // NaN, which nothing is within, unless y is finite
      close[lane] += difference <= allowed ? V{1} : V{0};
      zero[lane] += magnitude(x) + size == 0 ? V{1} : V{0};
    };
    std::int64_t i = 0;
    for (; i + kLanes <= some; i += kLanes)
      for (int lane = 0; lane < kLanes; ++lane) test(lane, a[i + lane], e[i + lane]);
    for (int lane = 0; i < some; ++i, ++lane) test(lane, a[i], e[i]);
    for (int lane = 0; lane < kLanes; ++lane) {
      all += static_cast<std::int64_t>(close[lane]);
      none += static_cast<std::int64_t>(zero[lane]);
    }
    a += some, e += some, n -= some;
  }
  *zeros = none;
  return all;
}

std::int64_t count_close_32(const float* a, const float* e, std::int64_t n, float rtol, float atol,
                            std::int64_t* zeros) {
  return count_close(a, e, n, rtol, atol, zeros);
}

std::int64_t count_close_64(const double* a, const double* e, std::int64_t n, double rtol, double atol,
                            std::int64_t* zeros) {
  return count_close(a, e, n, rtol, atol, zeros);
}

#define EJK_CLOSE_KERNELS .count_close_32 = count_close_32, .count_close_64 = count_close_64
