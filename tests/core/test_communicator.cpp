#include <doctest/doctest.h>

#include <span>
#include <string>
#include <vector>

#include "ejk/communicator.hpp"
#include "ejk/error.hpp"
#include "support/thread_communicator.hpp"

using ejk::Communicator;
using ejk::RankMessage;

TEST_CASE("values come out of their bytes in the order in which they were put") {
  RankMessage packed;
  packed.put(7).put_text("ids").put_all(std::vector<double>{0.5, -1}).put(true);
  RankMessage again{ejk::Bytes(packed.bytes().begin(), packed.bytes().end())};
  CHECK(again.take<int>() == 7);
  CHECK(again.take_text() == "ids");
  CHECK(again.take_all<double>() == std::vector<double>{0.5, -1});
  CHECK(again.take<bool>());
  CHECK_THROWS_AS(again.take<char>(), ejk::Error);
}

TEST_CASE("ranks get what all of them give, by ranks") {
  for (const std::int64_t size : {1, 2, 5}) {
    ejk::test::run_ranks(size, [&](Communicator& comm) {
      for (int round = 0; round < 3; ++round) {
        const auto all =
            comm.all_gather(RankMessage().put(10 * round + static_cast<int>(comm.rank())).bytes());
        REQUIRE(static_cast<std::int64_t>(all.size()) == size);
        for (std::size_t r = 0; r < all.size(); ++r)
          CHECK(RankMessage(all[r]).take<int>() == 10 * round + static_cast<int>(r));
      }
      CHECK(comm.gather(RankMessage().put(1).bytes()).empty() == !comm.is_first());
      CHECK(RankMessage(comm.broadcast(RankMessage().put(comm.rank()).bytes())).take<std::int64_t>() == 0);
      if (comm.is_first())
        for (std::int64_t r = 1; r < size; ++r) CHECK(RankMessage(comm.receive(r)).take<std::int64_t>() == r);
      else
        comm.send(0, RankMessage().put(comm.rank()).bytes());
    });
  }
}

TEST_CASE("a rank that fails stops all others") {
  CHECK_THROWS_WITH_AS(ejk::test::run_ranks(3,
                                            [](Communicator& comm) {
                                              if (comm.rank() == 1)
                                                throw ejk::Error(ejk::Error::Kind::input, "unreadable");
                                              static_cast<void>(comm.all_gather({}));
                                            }),
                       "unreadable", ejk::Error);
}

TEST_CASE("shares of an array: all of it in C order, each element once") {
  for (const ejk::Shape& shape : {ejk::Shape{}, {0}, {5}, {5000}, {40, 30, 20}, {1, 1, 9999}, {3, 7000}})
    for (const std::int64_t size : {1, 2, 3, 7}) {
      const auto shares =
          ejk::test::results_of_ranks(size, [&](Communicator& comm) { return share_of(shape, comm); });
      std::int64_t next = 0;
      for (const std::vector<ejk::ArrayBox>& share : shares)
        for (const ejk::ArrayBox& box : share) {
          // Elements of a box follow one another, so that its first index and its count say which they are.
          std::int64_t first = 0;
          for (std::size_t d = 0; d < shape.size(); ++d) first = first * shape[d] + box.start[d];
          CHECK(first == next);
          next += ejk::element_count(box.count);
        }
      CHECK(next == ejk::element_count(shape));
      if (ejk::element_count(shape) >= 7 * 1024) CHECK(!shares.back().empty());
    }
}
