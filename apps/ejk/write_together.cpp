// Writing of one file by several ranks. Rank 0 sends requests, the others reply; a request that fails is
// answered by its error. Cost: an array that ranks write in place is not sent, any other one once.
//
// tests: tests/app/test_write_together.cpp
#include "write_together.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "sources.hpp"

namespace ejk::app {

namespace {

using Progress = std::function<void(std::int64_t done, std::int64_t all)>;

enum class Request : std::int64_t { elements, fill, end };

// The bytes that this rank reads from files, for its progress.
struct Count {
  explicit Count(const Progress& tell) : progress(tell) {}
  void add(std::int64_t bytes) {
    const std::scoped_lock lock(mutex);
    progress(done += bytes, all);
  }

  const Progress& progress;
  std::mutex mutex;
  std::int64_t done = 0, all = 0;
};

// Counts the bytes that are read.
class CountedSource final : public ForwardingSource {
 public:
  CountedSource(std::shared_ptr<const ArraySource> source, std::shared_ptr<Count> count)
      : ForwardingSource(std::move(source)), count_(std::move(count)) {}

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    inner().read(start, count, out);
    count_->add(byte_count(count, dtype()));
  }

 private:
  std::shared_ptr<Count> count_;
};

std::shared_ptr<const ArraySource> counted(std::shared_ptr<const ArraySource> source,
                                           const std::shared_ptr<Count>& count) {
  if (source->access().prefer == ArrayAccess::Prefer::read) count->all += type_of(*source).bytes();
  return std::make_shared<CountedSource>(std::move(source), count);
}

// A box of a source.
std::shared_ptr<const ArraySource> part_of(const std::shared_ptr<const ArraySource>& source,
                                           const ArrayBox& box) {
  const auto read = [source, box](std::span<const std::int64_t> start, std::span<const std::int64_t> count,
                                  void* out) {
    Shape at(start.begin(), start.end());
    for (std::size_t d = 0; d < at.size(); ++d) at[d] += box.start[d];
    source->read(at, count, out);
  };
  return generated_source({source->dtype(), box.count}, source->name(), read,
                          ArrayAccess(source->access().order));
}

// What this rank writes: its parts, or its part of an array that all ranks can read.
std::vector<ArrayPart> own_parts(const Communicator& comm, const Output& output) {
  if (output.parts) return *output.parts;
  std::vector<ArrayPart> parts;
  for (const ArrayBox& box : share_of(output.source->shape(), comm))
    parts.push_back({box, part_of(output.source, box)});
  return parts;
}

std::optional<ArrayBox> common(const ArrayBox& a, std::span<const std::int64_t> start,
                               std::span<const std::int64_t> count) {
  ArrayBox both{Shape(start.size()), Shape(start.size())};
  for (std::size_t d = 0; d < start.size(); ++d) {
    both.start[d] = std::max(a.start[d], start[d]);
    both.count[d] = std::min(a.start[d] + a.count[d], start[d] + count[d]) - both.start[d];
    if (both.count[d] <= 0) return std::nullopt;
  }
  return both;
}

// Copies the contiguous elements of `box` to their positions in the box (start, count).
void place(const std::byte* elements, const ArrayBox& box, std::span<const std::int64_t> start,
           std::span<const std::int64_t> count, std::int64_t size, std::byte* out) {
  const std::size_t rank = start.size();
  const std::int64_t run = rank == 0 ? size : box.count[rank - 1] * size;
  Shape at = box.start;
  for (bool more = true; more; elements += run) {
    std::int64_t index = 0;
    for (std::size_t d = 0; d < rank; ++d) index = index * count[d] + at[d] - start[d];
    std::copy(elements, elements + run, out + index * size);
    more = false;
    for (std::size_t d = rank == 0 ? 0 : rank - 1; d-- > 0 && !more;) {
      more = ++at[d] < box.start[d] + box.count[d];
      if (!more) at[d] = box.start[d];
    }
  }
}

RankMessage refusal(const Error& error) {
  RankMessage message;
  message.put(false).put(error.kind()).put_text(error.message()).put_text(error.hint());
  return message;
}

// Throws the error of a reply.
void require_success(RankMessage& reply) {
  if (reply.take<bool>()) return;
  const auto kind = reply.take<Error::Kind>();
  const std::string message = reply.take_text();
  throw Error(kind, message).hint(reply.take_text());
}

// A box of an array and the rank that has it.
struct RankBox {
  std::int64_t rank;
  std::size_t part;
  ArrayBox box;
};

std::vector<std::vector<RankBox>> boxes_of_ranks(Communicator& comm, const std::vector<Output>& arrays) {
  RankMessage own;
  for (const Output& output : arrays) {
    own.put(output.parts ? std::ssize(*output.parts) : std::ptrdiff_t{0});
    if (!output.parts) continue;
    for (const ArrayPart& part : *output.parts) own.put_all(part.box.start).put_all(part.box.count);
  }
  std::vector<std::vector<RankBox>> boxes(arrays.size());
  std::int64_t rank = 0;
  for (Bytes& bytes : comm.all_gather(own.bytes())) {
    RankMessage message(std::move(bytes));
    for (std::vector<RankBox>& array_boxes : boxes)
      for (std::ptrdiff_t n = message.take<std::ptrdiff_t>(), part = 0; part < n; ++part) {
        Shape start = message.take_all<std::int64_t>();
        array_boxes.push_back(
            {rank, static_cast<std::size_t>(part), {std::move(start), message.take_all<std::int64_t>()}});
      }
    ++rank;
  }
  return boxes;
}

// All elements of an array of which ranks have parts, for rank 0. Boxes are requested in turn.
class GatheredSource final : public ArraySource {
 public:
  GatheredSource(Communicator& comm, const Output& output, std::size_t array, std::vector<RankBox> boxes)
      : ArraySource(type_of(*output.source), output.name),
        comm_(comm),
        parts_(*output.parts),
        array_(array),
        boxes_(std::move(boxes)) {}

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    if (element_count(count) == 0) return;
    for (const RankBox& rank_box : boxes_) {
      const std::optional<ArrayBox> box = common(rank_box.box, start, count);
      if (!box) continue;
      Bytes elements;
      if (rank_box.rank == comm_.rank()) {
        elements.resize(static_cast<std::size_t>(byte_count(box->count, dtype())));
        read_part(parts_[rank_box.part], *box, elements.data());
      } else {
        RankMessage request;
        request.put(Request::elements).put(array_).put(rank_box.part).put_all(box->start).put_all(box->count);
        comm_.send(rank_box.rank, request.bytes());
        RankMessage reply(comm_.receive(rank_box.rank));
        require_success(reply);
        elements = comm_.receive(rank_box.rank);
      }
      place(elements.data(), *box, start, count, size_of(dtype()), static_cast<std::byte*>(out));
    }
  }

  static void read_part(const ArrayPart& part, const ArrayBox& box, std::byte* out) {
    Shape at = box.start;
    for (std::size_t d = 0; d < at.size(); ++d) at[d] -= part.box.start[d];
    part.elements->read(at, box.count, out);
  }

 private:
  Communicator& comm_;
  const std::vector<ArrayPart>& parts_;
  std::size_t array_;
  std::vector<RankBox> boxes_;
};

class Writing {
 public:
  Writing(Communicator& comm, const std::vector<Output>& arrays, const Progress& progress, Sync sync)
      : comm_(comm),
        arrays_(arrays),
        sync_(sync),
        boxes_(boxes_of_ranks(comm, arrays)),
        count_(std::make_shared<Count>(progress)) {}

  // Sources of all elements, for rank 0.
  std::vector<NamedArray> sources() {
    std::vector<NamedArray> all;
    for (std::size_t n = 0; n < arrays_.size(); ++n) {
      const Output& output = arrays_[n];
      std::shared_ptr<const ArraySource> source = output.source;
      if (output.parts) source = std::make_shared<GatheredSource>(comm_, output, n, boxes_[n]);
      all.push_back({output.name, counted(std::move(source), count_)});
    }
    return all;
  }

  // All ranks write their elements of an array.
  void fill(std::size_t array, const ElementRegion& place) {
    RankMessage request;
    const bool is_local = comm_.local_size() == comm_.size();
    request.put(Request::fill).put(array).put(place.offset).put(is_local);
    request.put_text(place.path).put_text(place.name);
    for (std::int64_t rank = 1; rank < comm_.size(); ++rank) comm_.send(rank, request.bytes());
    // Every rank replies, also if this one fails.
    std::optional<Error> failure;
    try {
      ElementRegion own = place;
      own.is_local = is_local;
      write_own(array, own);
    } catch (const Error& error) {
      failure = error;
    }
    for (std::int64_t rank = 1; rank < comm_.size(); ++rank) {
      RankMessage reply(comm_.receive(rank));
      try {
        require_success(reply);
      } catch (const Error& error) {
        if (!failure) failure = error;
      }
    }
    if (failure) throw Error(*failure);
  }

  // Serves requests until rank 0 is done.
  void serve() {
    std::shared_ptr<void> temporary;
    while (true) {
      RankMessage request(comm_.receive(0));
      const auto what = request.take<Request>();
      if (what == Request::end) return;
      RankMessage reply;
      Bytes elements;
      try {
        const auto array = request.take<std::size_t>();
        if (what == Request::fill) {
          ElementRegion place;
          place.offset = request.take<std::int64_t>();
          place.is_local = request.take<bool>();
          place.path = request.take_text();
          place.name = request.take_text();
          temporary = share_temporary(place.path);
          write_own(array, place);
        } else {
          const ArrayPart& part = (*arrays_[array].parts)[request.take<std::size_t>()];
          ArrayBox box;
          box.start = request.take_all<std::int64_t>();
          box.count = request.take_all<std::int64_t>();
          elements.resize(static_cast<std::size_t>(byte_count(box.count, part.elements->dtype())));
          GatheredSource::read_part(part, box, elements.data());
        }
        reply.put(true);
      } catch (const Error& error) {
        reply = refusal(error);
        elements.clear();
      } catch (const std::bad_alloc&) {
        reply = refusal(Error(Error::Kind::budget, fmt::format("rank {}: out of memory", comm_.rank())));
        elements.clear();
      }
      comm_.send(0, reply.bytes());
      if (!elements.empty()) comm_.send(0, elements);
    }
  }

  // Releases the other ranks, also if writing fails.
  void end() {
    RankMessage request;
    request.put(Request::end);
    for (std::int64_t rank = 1; rank < comm_.size(); ++rank) comm_.send(rank, request.bytes());
  }

 private:
  void write_own(std::size_t array, const ElementRegion& place) {
    const Output& output = arrays_[array];
    try {
      for (const ArrayPart& part : own_parts(comm_, output))
        write_elements(place, output.source->shape(), part.box, *counted(part.elements, count_), sync_);
    } catch (Error& error) {
      if (!comm_.is_first()) error.at(fmt::format("rank {}", comm_.rank()));
      throw;
    }
  }

  Communicator& comm_;
  const std::vector<Output>& arrays_;
  Sync sync_;
  std::vector<std::vector<RankBox>> boxes_;
  std::shared_ptr<Count> count_;
};

}  // namespace

void write_together(Communicator& comm, const std::vector<Output>& arrays, const Progress& progress,
                    WriteOptions options,
                    const std::function<void(const std::vector<NamedArray>&, const WriteOptions&)>& write) {
  Writing writing(comm, arrays, progress, options.sync);
  if (!comm.is_first()) return writing.serve();
  if (!comm.is_single())
    options.fill = [&](std::size_t array, const ElementRegion& place) { writing.fill(array, place); };
  try {
    write(writing.sources(), options);
  } catch (...) {
    writing.end();
    throw;
  }
  writing.end();
}

Array gather_parts(Communicator& comm, const Output& output) {
  if (!output.parts) return comm.is_first() ? read_all(*output.source) : Array();
  Array whole;
  const auto no_progress = [](std::int64_t, std::int64_t) {};
  write_together(
      comm, {output}, no_progress, {}, [&](const std::vector<NamedArray>& arrays, const WriteOptions&) {
        const ArraySource& source = *arrays.front().source;
        whole = Array(source.dtype(), source.shape());
        std::byte* to = whole.data();
        for (const ArrayBox& piece : pieces_of(source.shape(), kPieceBytes / size_of(source.dtype()))) {
          source.read(piece.start, piece.count, to);
          to += byte_count(piece.count, source.dtype());
        }
      });
  return whole;
}

}  // namespace ejk::app
