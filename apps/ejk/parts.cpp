// Rank 0 learns every member's boxes, then takes their elements, one member after the other and piece by piece,
// so that it holds the array once. Members cut their boxes alike, so that pieces need no heads.
//
// tests: tests/app/test_parts.cpp
#include "parts.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "sources.hpp"

namespace ejk::app {

namespace {

// f(piece) for boxes of at most kPieceBytes that together are `box`, in C order.
template <class F>
void for_each_piece(const ArrayBox& box, DType dtype, const F& f) {
  if (element_count(box.count) == 0) return;
  const std::size_t rank = box.count.size();
  std::size_t axis = 0;  // the first of which one index fits
  const auto bytes_of_index = [&] {
    return byte_count(std::span(box.count).subspan(std::min(axis + 1, rank)), dtype);
  };
  while (axis + 1 < rank && bytes_of_index() > kPieceBytes) ++axis;
  if (rank == 0 || byte_count(box.count, dtype) <= kPieceBytes) return f(box);
  const std::int64_t step = std::max<std::int64_t>(1, kPieceBytes / bytes_of_index());
  ArrayBox piece = box;
  std::fill_n(piece.count.begin(), axis, 1);
  for (;;) {
    for (std::int64_t at = 0; at < box.count[axis]; at += step) {
      piece.start[axis] = box.start[axis] + at;
      piece.count[axis] = std::min(step, box.count[axis] - at);
      f(piece);
    }
    std::size_t next = axis;  // the axes before it, as digits of a number
    while (next > 0 && ++piece.start[next - 1] == box.start[next - 1] + box.count[next - 1]) {
      piece.start[next - 1] = box.start[next - 1];
      --next;
    }
    if (next == 0) return;
  }
}

// Elements of a box, side by side, to their places in the array.
void put(const std::byte* from, const ArrayBox& box, Array& whole) {
  const Shape strides = c_strides(whole.shape(), whole.dtype());
  std::size_t axis = box.count.size();  // the axes from here on lie side by side in both
  std::int64_t run = size_of(whole.dtype());
  while (axis > 0 && (axis == box.count.size() || box.count[axis] == whole.shape()[axis]))
    run *= box.count[--axis];
  std::byte* to = whole.data();
  for (std::size_t d = 0; d < box.start.size(); ++d) to += box.start[d] * strides[d];
  Shape index(axis, 0);
  for (;;) {
    std::memcpy(to, from, static_cast<std::size_t>(run));
    from += run;
    std::size_t d = axis;
    while (d > 0 && (to += strides[d - 1], ++index[d - 1] == box.count[d - 1])) {
      to -= box.count[d - 1] * strides[d - 1];
      index[--d] = 0;
    }
    if (d == 0) return;
  }
}

// The elements of a piece of a part.
Bytes elements_of(const OutputPart& part, const ArrayBox& piece) {
  Bytes bytes(static_cast<std::size_t>(byte_count(piece.count, part.elements->dtype())));
  Shape start = piece.start;
  for (std::size_t d = 0; d < start.size(); ++d) start[d] -= part.box.start[d];
  part.elements->read(start, piece.count, bytes.data());
  return bytes;
}

}  // namespace

Array gather_parts(Team& team, const Output& output) {
  if (!output.parts) return team.is_first() ? read_all(*output.source) : Array();
  const DType dtype = output.source->dtype();
  TeamMessage mine;
  mine.put(std::ssize(*output.parts));
  for (const OutputPart& part : *output.parts) mine.put_all(part.box.start).put_all(part.box.count);
  std::vector<Bytes> boxes = team.gather(mine.bytes());
  if (!team.is_first()) {
    for (const OutputPart& part : *output.parts)
      for_each_piece(part.box, dtype, [&](const ArrayBox& piece) { team.send(0, elements_of(part, piece)); });
    return {};
  }
  Array whole(dtype, output.source->shape());
  for (const OutputPart& part : *output.parts)
    for_each_piece(part.box, dtype,
                   [&](const ArrayBox& piece) { put(elements_of(part, piece).data(), piece, whole); });
  for (std::int64_t from = 1; from < team.size(); ++from) {
    TeamMessage message(std::move(boxes[static_cast<std::size_t>(from)]));
    for (auto parts = message.take<std::ptrdiff_t>(); parts > 0; --parts) {
      const Shape start = message.take_all<std::int64_t>();
      const ArrayBox box{start, message.take_all<std::int64_t>()};
      for_each_piece(box, dtype, [&](const ArrayBox& piece) {
        const Bytes elements = team.receive(from);
        put(elements.data(), piece, whole);
      });
    }
  }
  return whole;
}

}  // namespace ejk::app
