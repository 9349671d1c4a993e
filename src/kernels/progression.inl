// Arithmetic progressions, included by each instruction set's file inside its own unnamed namespace. The file
// defines before: Vector32 and Vector64, with the element type T, kLanes, and of(p) (load), all(x), plus(v),
// store(p), stream(p) to an address aligned to the vector; and stream_fence().

// out[i] = first + i · step. `stream`: whole cache lines are written past the caches, for arrays larger than
// those.
template <class V>
void fill_progression(typename V::T first, typename V::T step, std::int64_t n, bool stream,
                      typename V::T* out) {
  using T = typename V::T;
  constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));
  const auto one_by_one = [&](std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      *out++ = first;
      first += step;
    }
    n -= count;
  };
  if (n < 2 * kLine) return one_by_one(n);
  const auto past_line = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(out) % 64 / sizeof(T));
  one_by_one((kLine - past_line) % kLine);
  T start[V::kLanes];
  for (std::int64_t i = 0; i < V::kLanes; ++i) start[i] = first + static_cast<T>(i) * step;
  V values = V::of(start);
  const V stride = V::all(static_cast<T>(V::kLanes) * step);
  const std::int64_t whole = n / kLine * kLine;
  if (stream) {
    for (std::int64_t i = 0; i < whole; i += V::kLanes, values = values.plus(stride)) values.stream(out + i);
  } else {
    for (std::int64_t i = 0; i < whole; i += V::kLanes, values = values.plus(stride)) values.store(out + i);
  }
  out += whole;
  first += static_cast<T>(whole) * step;
  one_by_one(n - whole);
}

void progression_32(std::uint32_t first, std::uint32_t step, std::int64_t n, bool stream,
                    std::uint32_t* out) {
  fill_progression<Vector32>(first, step, n, stream, out);
}

void progression_64(std::uint64_t first, std::uint64_t step, std::int64_t n, bool stream,
                    std::uint64_t* out) {
  fill_progression<Vector64>(first, step, n, stream, out);
}

#define EJK_PROGRESSION_KERNELS \
  .progression_32 = progression_32, .progression_64 = progression_64, .stream_fence = stream_fence
