#include "bench/limits.hpp"

#include <fcntl.h>
#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <vector>

#include "ejk/array.hpp"

namespace bench {

namespace {

constexpr std::int64_t kBytes = std::int64_t{1} << 30;  // larger than any cache

ejk::Array& buffer() {
  static ejk::Array memory = [] {
    ejk::Array a(ejk::DType::uint64, {kBytes / 8});
    std::memset(a.data(), 1, kBytes);
    return a;
  }();
  return memory;
}

// The median rate of f(first byte, bytes) over equal parts, one a thread.
template <class F>
double rate(int passes, F&& f) {
  std::vector<double> rates;
  std::byte* data = buffer().data();
  for (int pass = 0; pass < passes; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
#pragma omp parallel
    {
      const std::int64_t part = kBytes / omp_get_num_threads() / 4096 * 4096;
      f(data + omp_get_thread_num() * part, part);
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    rates.push_back(static_cast<double>(kBytes) / seconds.count());
  }
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

void read_words(const std::byte* data, std::int64_t bytes) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(data);
  std::uint64_t sums[32] = {};
  for (std::int64_t i = 0; i < bytes / 8; i += 32)
    for (std::int64_t j = 0; j < 32; ++j) sums[j] |= words[i + j];
  for (const std::uint64_t& sum : sums) __asm__ volatile("" ::"r"(sum));
}

}  // namespace

double read_bandwidth(int passes) { return rate(passes, read_words); }

double mapped_read_bandwidth(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY);
  if (fd < 0) return 0;
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(path)) / 4096 * 4096;
  const auto begin = std::chrono::steady_clock::now();
  void* file = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (file == MAP_FAILED) return 0;
#pragma omp parallel
  {
    const std::int64_t part = bytes / omp_get_num_threads() / 4096 * 4096;
    read_words(static_cast<const std::byte*>(file) + omp_get_thread_num() * part, part);
  }
  munmap(file, static_cast<std::size_t>(bytes));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(bytes) / seconds.count();
}

namespace {

enum class Room { found_while_writing, reserved };

double write_new_file(const std::string& path, std::int64_t bytes, int threads, Room room) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 20;
  std::filesystem::remove(path);
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0600);
  if (fd < 0) return 0;
  const auto begin = std::chrono::steady_clock::now();
  bool good = room == Room::found_while_writing || fallocate(fd, 0, 0, bytes) == 0;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) reduction(&& : good)
  for (std::int64_t at = 0; at < bytes; at += kPiece) {
    const std::int64_t n = std::min(kPiece, bytes - at);
    good =
        pwrite(fd, buffer().data() + omp_get_thread_num() * kPiece, static_cast<std::size_t>(n), at) == n &&
        good;
  }
  close(fd);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::filesystem::remove(path);
  return good ? static_cast<double>(bytes) / seconds.count() : 0;
}

}  // namespace

double new_file_bandwidth(const std::string& path, std::int64_t bytes) {
  buffer();
  return std::max({write_new_file(path, bytes, 1, Room::found_while_writing),
                   write_new_file(path, bytes, 1, Room::reserved),
                   write_new_file(path, bytes, omp_get_max_threads(), Room::reserved)});
}

double fill_bandwidth(int passes) {
  return rate(passes, [](std::byte* data, std::int64_t bytes) {
#if defined(__SSE2__)
    const __m128i value = _mm_set1_epi8(2);
    for (std::int64_t i = 0; i < bytes; i += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(data + i), value);
    _mm_sfence();
#else
    std::memset(data, 2, static_cast<std::size_t>(bytes));
#endif
    __asm__ volatile("" ::"r"(data) : "memory");
  });
}

}  // namespace bench
