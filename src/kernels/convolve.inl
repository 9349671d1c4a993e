// Rows of short convolutions on the arithmetics of kernels/matmul.inl and the exponential of kernels/softmax.inl.

// x / (1 + exp(−x)), by exp(−|x|), which does not overflow.
template <class U>
[[gnu::always_inline]] inline typename U::Vec silu_of(typename U::Vec x) {
  using Vec = typename U::Vec;
  const auto is_negative = x < U::zero();
  const Vec one = all_of<U>(1), power = exp_below<U>(is_negative ? x : -x);
  return x * (is_negative ? power : one) / (one + power);
}

// Elements from i on, of N vectors; load(p) and store(p, v) are those of all lanes or of some.
template <class U, bool ByChannel, int N, class Load, class Store>
[[gnu::always_inline]] inline void convolve_part(const ConvolvedRow<typename U::Sum>& of, std::int64_t i,
                                                 typename U::Sum* out, Load&& load, Store&& store) {
  using Vec = typename U::Vec;
  const auto along = [&](const typename U::Sum* p, int v) __attribute__((always_inline)) {
    if constexpr (ByChannel)
      return load(p + i + v * U::kLanes);
    else
      return all_of<U>(*p);
  };
  Vec sum[N];
#pragma GCC unroll 4
  for (int v = 0; v < N; ++v) sum[v] = along(of.bias, v);
  const typename U::Sum* weight = of.weights;
  for (std::int64_t j = 0; j < of.width; ++j, weight += of.weight_stride) {
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v)
      sum[v] = U::mac(sum[v], along(weight, v), load(of.rows[j] + i + v * U::kLanes));
  }
#pragma GCC unroll 4
  for (int v = 0; v < N; ++v) store(out + i + v * U::kLanes, of.silu ? silu_of<U>(sum[v]) : sum[v]);
}

template <class U, bool ByChannel>
void convolve_row(const ConvolvedRow<typename U::Sum>& of, std::int64_t n, typename U::Sum* out) {
  using Vec = typename U::Vec;
  using Real = typename U::Sum;
  constexpr int kVectors = 4;
  const auto load = [](const Real* p) { return U::load(p); };
  const auto store = [](Real* p, Vec v) { U::store(p, v); };
  std::int64_t i = 0;
  for (; i + kVectors * U::kLanes <= n; i += kVectors * U::kLanes)
    convolve_part<U, ByChannel, kVectors>(of, i, out, load, store);
  for (; i + U::kLanes <= n; i += U::kLanes) convolve_part<U, ByChannel, 1>(of, i, out, load, store);
  if (const auto rest = static_cast<int>(n - i); rest > 0)
    convolve_part<U, ByChannel, 1>(
        of, i, out, [rest](const Real* p) { return U::load_part(p, rest); },
        [rest](Real* p, Vec v) { U::store_part(p, v, rest); });
}

template <class U>
void convolve(const ConvolvedRow<typename U::Sum>& of, std::int64_t n, typename U::Sum* out) {
  of.by_channel ? convolve_row<U, true>(of, n, out) : convolve_row<U, false>(of, n, out);
}

#define EJK_CONVOLVE_KERNELS .convolve_f32 = convolve<F32>, .convolve_f64 = convolve<F64>
