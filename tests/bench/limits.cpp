#include "bench/limits.hpp"

#include <fcntl.h>
#include <omp.h>
#include <sys/mman.h>
#include <sys/syscall.h>
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
#include "ejk/program/machine.hpp"

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

// Loops of multiply-adds. In assembler: nothing here is compiled for another instruction set than the rest of
// the program, and no compiler can see that the sums are not used. Twelve sums at a time are more than two
// units with a latency of five cycles each can have under way.
namespace {

struct Unit {
  const char* name;  // as in ejk::instruction_sets()
  double flops;      // of one round
  void (*rounds)(std::int64_t n);
};

#if defined(__x86_64__)

// 1.002 as float32, twice 1 as bfloat16, 0.008 as float64.
constexpr std::uint32_t kFactor = 0x3F803F80;

// REGISTERS: ymm or zmm.
#define EJK_ROUNDS(NAME, INSTRUCTION, REGISTERS)                                                         \
  void NAME(std::int64_t n) {                                                                            \
    __asm__ volatile(                                                                                    \
        ".irp i,0,1,2,3,4,5,6,7,8,9,10,11\n\t"                                                           \
        "vxorps %%xmm\\i, %%xmm\\i, %%xmm\\i\n\t"                                                        \
        ".endr\n\t"                                                                                      \
        "vpbroadcastd %1, %%" REGISTERS                                                                  \
        "14\n\t"                                                                                         \
        "vpbroadcastd %1, %%" REGISTERS                                                                  \
        "15\n"                                                                                           \
        "1:\n\t"                                                                                         \
        ".irp i,0,1,2,3,4,5,6,7,8,9,10,11\n\t" INSTRUCTION " %%" REGISTERS "14, %%" REGISTERS            \
        "15, %%" REGISTERS                                                                               \
        "\\i\n\t"                                                                                        \
        ".endr\n\t"                                                                                      \
        "decq %0\n\t"                                                                                    \
        "jnz 1b\n\t"                                                                                     \
        "vzeroupper"                                                                                     \
        : "+r"(n)                                                                                        \
        : "m"(kFactor)                                                                                   \
        : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
          "xmm11", "xmm14", "xmm15");                                                                    \
  }
EJK_ROUNDS(f32_in_ymm, "vfmadd231ps", "ymm")
EJK_ROUNDS(f64_in_ymm, "vfmadd231pd", "ymm")
EJK_ROUNDS(f32_in_zmm, "vfmadd231ps", "zmm")
EJK_ROUNDS(f64_in_zmm, "vfmadd231pd", "zmm")
EJK_ROUNDS(bf16_in_zmm, "vdpbf16ps", "zmm")
#undef EJK_ROUNDS

// Four tiles of sums from two tiles of rows and two of columns; each 16 rows of 64 bytes.
void bf16_in_tiles(std::int64_t n) {
  struct alignas(64) {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t bytes_of_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } const tiles;
  __asm__ volatile(
      "ldtilecfg %1\n\t"
      ".irp i,0,1,2,3,4,5,6,7\n\t"
      "tilezero %%tmm\\i\n\t"
      ".endr\n"
      "1:\n\t"
      "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\t"
      "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t"
      "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n\t"
      "tdpbf16ps %%tmm7, %%tmm5, %%tmm3\n\t"
      "decq %0\n\t"
      "jnz 1b\n\t"
      "tilerelease"
      : "+r"(n)
      : "m"(tiles)
      : "cc");
}

#endif

// What the compiler makes of it for the processors that the program is for; a round is 64 steps of eight
// vectors.
template <class T>
void compiled(std::int64_t n) {
  using Vector [[gnu::vector_size(16)]] = T;
  Vector kept[8] = {};
  const Vector a = Vector{} + T(0.999), b = Vector{} + T(0.001);
  for (; n > 0; --n) {
    Vector s0 = kept[0], s1 = kept[1], s2 = kept[2], s3 = kept[3];
    Vector s4 = kept[4], s5 = kept[5], s6 = kept[6], s7 = kept[7];
    for (int step = 0; step < 64; ++step) {
      s0 = s0 * a + b, s1 = s1 * a + b, s2 = s2 * a + b, s3 = s3 * a + b;
      s4 = s4 * a + b, s5 = s5 * a + b, s6 = s6 * a + b, s7 = s7 * a + b;
    }
    kept[0] = s0, kept[1] = s1, kept[2] = s2, kept[3] = s3;
    kept[4] = s4, kept[5] = s5, kept[6] = s6, kept[7] = s7;
    __asm__ volatile("" : "+m"(kept));
  }
}

const Unit& unit_for(ejk::DType dtype) {
  static const std::vector<std::string> here = ejk::instruction_sets();
  static const std::vector<Unit> f64 = {
#if defined(__x86_64__)
    {"avx512", 12 * 8 * 2, f64_in_zmm},
    {"avx2", 12 * 4 * 2, f64_in_ymm},
#endif
    {"portable", 64 * 16 * 2, compiled<double>}
  };
  static const std::vector<Unit> f32 = {
#if defined(__x86_64__)
    {"avx512", 12 * 16 * 2, f32_in_zmm},
    {"avx2", 12 * 8 * 2, f32_in_ymm},
#endif
    {"portable", 64 * 32 * 2, compiled<float>}
  };
  static const std::vector<Unit> bf16 = [] {
#if defined(__x86_64__)
    constexpr long kRequest = 0x1023, kTileData = 18;  // the system lets a process use AMX that asks for it
    syscall(SYS_arch_prctl, kRequest, kTileData);
#endif
    std::vector<Unit> units = {
#if defined(__x86_64__)
      {"amx", 4 * 16 * 16 * 32 * 2, bf16_in_tiles},
      {"avx512bf16", 12 * 32 * 2, bf16_in_zmm},
#endif
    };
    units.insert(units.end(), f32.begin(), f32.end());
    return units;
  }();
  const auto& units = dtype == ejk::DType::float64 ? f64 : dtype == ejk::DType::bfloat16 ? bf16 : f32;
  return *std::find_if(units.begin(), units.end() - 1, [](const Unit& unit) {
    return std::find(here.begin(), here.end(), unit.name) != here.end();
  });
}

}  // namespace

std::string multiply_add_unit(ejk::DType dtype) { return unit_for(dtype).name; }

double multiply_add_rate(ejk::DType dtype, double seconds) {
  const Unit& unit = unit_for(dtype);
  constexpr std::int64_t kRounds = 10'000;  // between two looks at the clock
  std::int64_t rounds = 0;
  const auto begin = std::chrono::steady_clock::now();
  const auto passed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
#pragma omp parallel reduction(+ : rounds)
  while (passed() < seconds) {
    unit.rounds(kRounds);
    rounds += kRounds;
  }
  return unit.flops * static_cast<double>(rounds) / passed();
}

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
