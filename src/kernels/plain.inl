// An arithmetic of matmul.inl on generic vectors, for matmul_portable.cpp and the tests for tiles of odd
// sizes.

template <class T, int Bytes, std::int64_t LongestContraction>
struct Plain {
  using Sum = T;
  using Vec __attribute__((vector_size(Bytes))) = T;
  using Pack = Vec;
  static constexpr int kLanes = Bytes / sizeof(T);
  static constexpr std::int64_t kUnit = sizeof(T), kKr = 1, kKc = LongestContraction;

  static Vec zero() { return Vec{}; }
  static Vec load(const T* p) { return load_part(p, kLanes); }
  static void store(T* p, Vec v) { store_part(p, v, kLanes); }
  static Vec load_part(const T* p, int n) {
    Vec v{};
    std::memcpy(&v, p, static_cast<std::size_t>(n) * sizeof(T));
    return v;
  }
  static void store_part(T* p, Vec v, int n) { std::memcpy(p, &v, static_cast<std::size_t>(n) * sizeof(T)); }
  static Pack load_b(const char* p) { return load(reinterpret_cast<const T*>(p)); }
  static Pack spread_a(const char* p) { return Vec{} + *reinterpret_cast<const T*>(p); }
  static Vec mac(Vec sum, Pack a, Pack b) { return sum + a * b; }
  static Vec lanes(const char* p, std::int64_t) { return load(reinterpret_cast<const T*>(p)); }
  template <DType D>
  static Vec widen(const char* p) {
    using From =
        std::conditional_t<D == DType::float16, float16,
                           std::conditional_t<D == DType::bfloat16, bfloat16,
                                              std::conditional_t<D == DType::float32, float, double>>>;
    Vec v{};
    for (int i = 0; i < kLanes; ++i) {
      From element;
      std::memcpy(&element, p + i * static_cast<int>(sizeof(From)), sizeof(From));
      if constexpr (sizeof(From) == 2)
        v[i] = static_cast<T>(static_cast<float>(element));
      else
        v[i] = static_cast<T>(element);
    }
    return v;
  }
  template <DType D>
  static void spread_pair(const char* p, Pack* to) {
    constexpr std::size_t kPair = D == DType::float32 ? 8 : 4;
    char pairs[8 * kLanes] = {};
    std::memcpy(pairs, p, kPair);
    const Vec both = widen<D>(pairs);
    to[0] = Vec{} + both[0];
    to[1] = Vec{} + both[1];
  }
};

inline void plain_round_16(const float* in, std::int64_t n, std::uint16_t* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = bfloat16(in[i]).bits;
}
