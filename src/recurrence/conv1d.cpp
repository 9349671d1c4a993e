// Short convolutions by blocks of tokens and channels, along the axis that is contiguous: a row of sums begins with the
// bias, and takes the products of all weights in their order, then the activation, then its rounding. The blocks
// depend on the problem alone. Cost: a pass over x and out; memory: a block for each thread.
// tests: tests/recurrence/test_conv1d.cpp
#include "recurrence/conv1d.hpp"

#include <algorithm>
#include <cstring>

#include "core/checked.hpp"
#include "core/elements.hpp"
#include "core/parallel.hpp"
#include "core/workspace.hpp"
#include "kernels/kernels.hpp"
#include "matmul/packed.hpp"

namespace ejk {

namespace {

using recurrence::Conv1dProblem;
using recurrence::Sequence;
using recurrence::Slot;

struct Block {
  std::size_t sequence;
  std::int64_t first, tokens, channel, channels;
};

std::vector<Block> blocks_of(const Conv1dProblem& p, std::int64_t tokens, std::int64_t channels) {
  std::vector<Block> blocks;
  for (std::size_t n = 0; n < p.sequences.size(); ++n) {
    const std::int64_t length = p.slots[n].is_padding ? 0 : p.sequences[n].length;
    for (std::int64_t t = 0; t < length; t += tokens)
      for (std::int64_t c = 0; c < p.types.channels; c += channels)
        blocks.push_back({n, t, std::min(tokens, length - t), c, std::min(channels, p.types.channels - c)});
  }
  return blocks;
}

template <class Real>
void load(DType dtype, const std::byte* from, std::int64_t stride, std::int64_t count, Real* to) {
  if constexpr (std::is_same_v<Real, float>)
    if (stride == 2 && size_of(dtype) == 2) return kernels::active().codes.widen(dtype, from, count, to);
  core::load(dtype, from, stride, count, to);
}

template <class Real>
std::vector<Real> loaded(const ArrayView& array, std::int64_t stride, std::int64_t count) {
  std::vector<Real> values(static_cast<std::size_t>(count));
  load(array.dtype, array.data, stride, count, values.data());
  return values;
}

template <class Real>
kernels::Convolve<Real>& convolve_of() {
  if constexpr (sizeof(Real) == 8)
    return *kernels::active().products.convolve_f64;
  else
    return *kernels::active().products.convolve_f32;
}

template <class Real>
class Convolution {
 public:
  Convolution(const Conv1dProblem& p, const MutableArrayView& out)
      : p_(p),
        history_(p.types.width - 1),
        out_(out),
        to_(recurrence::in_one_form(ArrayView(out.data, out.dtype, out.shape), p.types.layout)) {
    const std::int64_t channels = p.types.channels;
    for (std::int64_t j = 0; j < p.types.width && channels > 0; ++j) {
      ArrayView column = p.weight;
      column.data += j * column.strides[1];
      const std::vector<Real> w = loaded<Real>(column, column.strides[0], channels);
      weights_.insert(weights_.end(), w.begin(), w.end());
    }
    if (p.bias && channels > 0)
      bias_ = loaded<Real>(*p.bias, p.bias->strides[0], channels);
    else
      bias_.assign(static_cast<std::size_t>(channels), 0);
  }

  void run() {
    const bool by_channels = !recurrence::has_tokens_last(p_.types.layout);
    const std::vector<Block> blocks = by_channels ? blocks_of(p_, 32, 512) : blocks_of(p_, 2048, 16);
    const double work = static_cast<double>(p_.types.tokens) * static_cast<double>(p_.types.channels) *
                        (0.5 + 0.2 * static_cast<double>(p_.types.width));
    core::parallel_for(std::ssize(blocks), work, [&](std::int64_t b) {
      const Block& block = blocks[static_cast<std::size_t>(b)];
      by_channels ? along_channels(block) : along_tokens(block);
    });
  }

 private:
  static constexpr bool is_in_place(DType dtype, std::int64_t stride) {
    return dtype == dtype_of<Real>() && stride == static_cast<std::int64_t>(sizeof(Real));
  }

  // Sums, then `count` elements.
  struct Scratch {
    Real *sums, *elements;

    Scratch(std::int64_t row, std::int64_t count) {
      row = core::round_up(row, 64);
      sums = reinterpret_cast<Real*>(core::Workspace::of_this_thread().at_least(
          (row + count) * static_cast<std::int64_t>(sizeof(Real))));
      elements = sums + row;
    }
  };

  // Token `t` of a block's channels, below 0 one of its state: in place, or in `buffer`.
  const Real* token(const Block& b, std::int64_t t, Real* buffer) const {
    if (t >= 0) {
      const std::byte* const from = p_.x_at(p_.sequences[b.sequence], t, b.channel);
      if (is_in_place(p_.x.dtype, p_.x.strides[2])) return reinterpret_cast<const Real*>(from);
      load(p_.x.dtype, from, p_.x.strides[2], b.channels, buffer);
    } else if (const std::int64_t state = p_.slots[b.sequence].read; state >= 0) {
      load(p_.state->dtype, p_.state_at(state, b.channel, p_.types.state_width + t), p_.state->strides[1],
           b.channels, buffer);
    } else {
      std::fill_n(buffer, b.channels, Real(0));
    }
    return buffer;
  }

  // The last W tokens are in buffers that take turns.
  void along_channels(const Block& b) const {
    const std::int64_t width = p_.types.width, size = core::round_up(b.channels, 64);
    const Scratch scratch(b.channels, width * size);
    std::vector<const Real*> rows;
    for (std::int64_t t = 0; t < history_ + b.tokens; ++t) {
      rows.push_back(token(b, b.first - history_ + t, scratch.elements + t % width * size));
      if (t >= history_)
        row(b.channel, true, rows.data() + t - history_, b.channels, to_.strides[2],
            out_at(p_.sequences[b.sequence], b.first + t - history_, b.channel), scratch.sums);
    }
  }

  void along_tokens(const Block& b) const {
    const Sequence& sequence = p_.sequences[b.sequence];
    const Scratch scratch(b.tokens, history_ + b.tokens);
    std::vector<const Real*> rows(static_cast<std::size_t>(p_.types.width));
    const std::int64_t from_state = std::max<std::int64_t>(0, history_ - b.first);
    const std::int64_t state = p_.slots[b.sequence].read;
    for (std::int64_t c = b.channel; c < b.channel + b.channels; ++c) {
      const Real* line = scratch.elements;
      if (from_state == 0 && is_in_place(p_.x.dtype, p_.x.strides[1])) {
        line = reinterpret_cast<const Real*>(p_.x_at(sequence, b.first - history_, c));
      } else {
        if (from_state > 0 && state >= 0)
          load(p_.state->dtype, p_.state_at(state, c, p_.types.state_width - from_state),
               p_.state->strides[2], from_state, scratch.elements);
        else
          std::fill_n(scratch.elements, from_state, Real(0));
        load(p_.x.dtype, p_.x_at(sequence, b.first - history_ + from_state, c), p_.x.strides[1],
             history_ + b.tokens - from_state, scratch.elements + from_state);
      }
      for (std::size_t j = 0; j < rows.size(); ++j) rows[j] = line + j;
      row(c, false, rows.data(), b.tokens, to_.strides[1], out_at(sequence, b.first, c), scratch.sums);
    }
  }

  std::byte* out_at(const Sequence& sequence, std::int64_t token, std::int64_t channel) const {
    return out_.data + sequence.entry * to_.strides[0] + (sequence.begin + token) * to_.strides[1] +
           channel * to_.strides[2];
  }

  // `n` elements of out at `to`, from a channel on, or of it. `sums` is a buffer.
  void row(std::int64_t channel, bool by_channel, const Real* const* rows, std::int64_t n,
           std::int64_t stride, std::byte* to, Real* sums) const {
    const bool in_place = is_in_place(out_.dtype, stride);
    if (in_place) sums = reinterpret_cast<Real*>(to);
    convolve_of<Real>()({bias_.data() + channel, weights_.data() + channel, p_.types.channels, p_.types.width,
                         by_channel, p_.activation == Conv1dActivation::silu, rows},
                        n, sums);
    if (!in_place) matmul::store(sums, n, out_.dtype, to);
  }

  const Conv1dProblem& p_;
  std::int64_t history_;
  std::vector<Real> weights_, bias_;  // (W, channels)
  MutableArrayView out_;
  ArrayView to_;
};

// `count` elements, as they are where the types are the same.
void copy_strided(DType from_dtype, const std::byte* from, std::int64_t from_stride, std::int64_t count,
                  DType to_dtype, std::byte* to, std::int64_t to_stride) {
  std::vector<std::byte> rounded;
  if (from_dtype != to_dtype) {
    std::vector<double> values(static_cast<std::size_t>(count));
    core::load(from_dtype, from, from_stride, count, values.data());
    rounded.resize(static_cast<std::size_t>(count * size_of(to_dtype)));
    core::store(to_dtype, values.data(), count, rounded.data());
    from = rounded.data();
    from_stride = size_of(to_dtype);
  }
  dispatch(to_dtype, [&]<class T>(std::type_identity<T>) {
    for (std::int64_t i = 0; i < count; ++i)
      std::memcpy(to + i * to_stride, from + i * from_stride, sizeof(T));
  });
}

// The last tokens of each sequence, and before them what is left of its state.
void write_states(const Conv1dProblem& p, const MutableArrayView& out, Conv1dStateLayout layout) {
  const ArrayView to = recurrence::in_one_form(ArrayView(out.data, out.dtype, out.shape), layout);
  const std::int64_t columns = p.types.state_width;
  constexpr std::int64_t kChannels = 1024;
  const std::int64_t blocks = core::ceil_div(p.types.channels, kChannels);
  const double elements =
      static_cast<double>(p.types.sequences * columns) * static_cast<double>(p.types.channels);
  core::parallel_for(p.types.sequences * blocks, 2 * elements, [&](std::int64_t block) {
    const auto n = static_cast<std::size_t>(block / blocks);
    const std::int64_t channel = block % blocks * kChannels,
                       count = std::min(kChannels, p.types.channels - channel);
    const Sequence& sequence = p.sequences[n];
    const Slot& slot = p.slots[n];
    for (std::int64_t l = 0; l < columns && slot.write >= 0; ++l) {
      std::byte* const at =
          out.data + slot.write * to.strides[0] + channel * to.strides[1] + l * to.strides[2];
      const std::int64_t token = sequence.length - columns + l;
      if (token >= 0) {
        copy_strided(p.x.dtype, p.x_at(sequence, token, channel), p.x.strides[2], count, out.dtype, at,
                     to.strides[1]);
      } else if (slot.read >= 0) {
        copy_strided(p.state->dtype, p.state_at(slot.read, channel, columns + token), p.state->strides[1],
                     count, out.dtype, at, to.strides[1]);
      } else {
        for (std::int64_t c = 0; c < count; ++c)
          std::memset(at + c * to.strides[1], 0, static_cast<std::size_t>(size_of(out.dtype)));
      }
    }
  });
}

}  // namespace

Conv1dResult conv1d(const Conv1dOperands& operands, const Conv1dSettings& settings) {
  const Conv1dProblem p = recurrence::conv1d_problem(operands, settings);
  Conv1dResult result{Array(p.types.out.dtype, p.types.out.shape),
                      p.has_pool ? Array::copy_of(*operands.initial_state)
                                 : Array(p.types.final_state.dtype, p.types.final_state.shape)};
  const MutableArrayView out = result.out.mutable_view();
  if (p.is_double)
    Convolution<double>(p, out).run();
  else
    Convolution<float>(p, out).run();
  write_states(p, result.final_state.mutable_view(), settings.state_layout);
  return result;
}

}  // namespace ejk
