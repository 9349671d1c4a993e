// Runs of arithmetic progressions. The including file defines Vector32 and Vector64, with T, kLanes, of(p)
// (load), all(x), plus(v), below(lane, v) (lanes before `lane` from here, others from v), aligned store(p)
// and stream(p); and stream_fence(). A line in which runs meet is composed in registers, so every line but
// the first and last is written once and whole: streaming a part of a line would read it first.

template <class V>
struct ProgressionLine {
  using T = typename V::T;
  static constexpr std::int64_t kElements = 64 / static_cast<std::int64_t>(sizeof(T));
  static constexpr std::int64_t kVectors = kElements / V::kLanes;
  V part[kVectors];

  static ProgressionLine of(const T* p) {
    ProgressionLine line;
    for (std::int64_t i = 0; i < kVectors; ++i) line.part[i] = V::of(p + i * V::kLanes);
    return line;
  }
  ProgressionLine plus(const V& x) const {
    ProgressionLine line;
    for (std::int64_t i = 0; i < kVectors; ++i) line.part[i] = part[i].plus(x);
    return line;
  }
  ProgressionLine below(std::int64_t lane, const ProgressionLine& after) const {
    ProgressionLine line;
    for (std::int64_t i = 0; i < kVectors; ++i)
      line.part[i] = part[i].below(lane - i * V::kLanes, after.part[i]);
    return line;
  }
  void store(T* p) const {
    for (std::int64_t i = 0; i < kVectors; ++i) part[i].store(p + i * V::kLanes);
  }
  void stream(T* p) const {
    for (std::int64_t i = 0; i < kVectors; ++i) part[i].stream(p + i * V::kLanes);
  }
};

template <class V>
void fill_progressions(const std::int64_t* offsets, const std::int64_t* firsts, typename V::T step,
                       std::int64_t begin, std::int64_t end, bool stream, typename V::T* out) {
  using T = typename V::T;
  using Line = ProgressionLine<V>;
  constexpr std::int64_t kElements = Line::kElements;
  if (begin >= end) return;
  T ramp_values[kElements];
  for (std::int64_t i = 0; i < kElements; ++i) ramp_values[i] = static_cast<T>(i) * step;
  const Line ramp = Line::of(ramp_values);
  const V stride = V::all(static_cast<T>(kElements) * step);
  // The line whose first element is number `at`, if all of it belonged to the run.
  const auto line_of = [&](std::int64_t run, std::int64_t at) {
    const T first = firsts == nullptr ? T{0} : static_cast<T>(firsts[run]);
    return ramp.plus(V::all(first + static_cast<T>(at - offsets[run]) * step));
  };

  const auto lane = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(out) % 64 / sizeof(T));
  T* to = out - lane;
  std::int64_t run = 0;
  for (std::int64_t at = begin - lane; at < end;) {
    while (offsets[run + 1] <= at) ++run;
    Line line = line_of(run, at);
    const std::int64_t stop = offsets[run + 1] < end ? offsets[run + 1] : end;
    if (at >= begin && stop - at >= kElements) {
      const std::int64_t last = stop - kElements;
      if (stream) {
        for (; at <= last; at += kElements, to += kElements, line = line.plus(stride)) line.stream(to);
      } else {
        for (; at <= last; at += kElements, to += kElements, line = line.plus(stride)) line.store(to);
      }
      continue;
    }
    const std::int64_t line_end = at + kElements < end ? at + kElements : end;
    while (offsets[run + 1] < line_end) {
      ++run;
      line = line.below(offsets[run] - at, line_of(run, at));
    }
    if (at < begin || at + kElements > end) {
      alignas(64) T values[kElements];
      line.store(values);
      for (std::int64_t i = at < begin ? begin - at : 0; i < line_end - at; ++i) to[i] = values[i];
    } else if (stream) {
      line.stream(to);
    } else {
      line.store(to);
    }
    at += kElements;
    to += kElements;
  }
}

void progressions_32(const std::int64_t* offsets, const std::int64_t* firsts, std::uint32_t step,
                     std::int64_t begin, std::int64_t end, bool stream, std::uint32_t* out) {
  fill_progressions<Vector32>(offsets, firsts, step, begin, end, stream, out);
}

void progressions_64(const std::int64_t* offsets, const std::int64_t* firsts, std::uint64_t step,
                     std::int64_t begin, std::int64_t end, bool stream, std::uint64_t* out) {
  fill_progressions<Vector64>(offsets, firsts, step, begin, end, stream, out);
}

#define EJK_PROGRESSION_KERNELS \
  .progressions_32 = progressions_32, .progressions_64 = progressions_64, .stream_fence = stream_fence
