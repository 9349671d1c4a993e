#include "support/amx_emulation.hpp"

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstring>

#include "ejk/dtype.hpp"

#if defined(__x86_64__) && defined(__linux__)
#include <ucontext.h>
#endif

namespace test::amx {

namespace {

float flushed(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7F800000u) == 0) bits &= 0x80000000u;
  std::memcpy(&x, &bits, 4);
  return x;
}

float float_at(const std::byte* p) {
  float x = 0;
  std::memcpy(&x, p, 4);
  return x;
}

float bf16_at(const std::byte* p) {
  ejk::bfloat16 x;
  std::memcpy(&x, p, 2);
  return flushed(static_cast<float>(x));
}

std::atomic<std::int64_t> emulated_count{0};

}  // namespace

void dot_bf16(Tile& sum, const Tile& a, const Tile& b, int rows, int columns, int pairs) {
  float factors[16][32];
  for (std::size_t p = 0; p < static_cast<std::size_t>(pairs); ++p)
    for (std::size_t c = 0; c < 2 * static_cast<std::size_t>(columns); ++c)
      factors[p][c] = bf16_at(b[p].data() + 2 * c);
  for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
    float made[32] = {};
    for (std::size_t p = 0; p < static_cast<std::size_t>(pairs); ++p) {
      const float first = bf16_at(a[r].data() + 4 * p), second = bf16_at(a[r].data() + 4 * p + 2);
      for (std::size_t c = 0; c < 2 * static_cast<std::size_t>(columns); c += 2) {
        made[c] = flushed(std::fma(first, factors[p][c], made[c]));
        made[c + 1] = flushed(std::fma(second, factors[p][c + 1], made[c + 1]));
      }
    }
    for (std::size_t c = 0; c < static_cast<std::size_t>(columns); ++c) {
      std::byte* at = sum[r].data() + 4 * c;
      const float x = flushed(flushed(float_at(at)) + flushed(made[2 * c] + made[2 * c + 1]));
      std::memcpy(at, &x, 4);
    }
  }
}

std::int64_t emulated() { return emulated_count.load(); }

#if defined(__x86_64__) && defined(__linux__)

namespace {

// A thread's tiles and their configuration.
struct State {
  bool configured = false;
  std::uint8_t config[64] = {};
  Tile tiles[8] = {};

  int rows(int tile) const { return config[48 + tile]; }
  int row_bytes(int tile) const { return config[16 + 2 * tile] | config[17 + 2 * tile] << 8; }
  bool usable(int tile) const { return configured && rows(tile) > 0 && row_bytes(tile) > 0; }
  Tile& tile(int n) { return tiles[static_cast<std::size_t>(n)]; }
};

thread_local State state;

// What a register's value points to.
std::uint8_t* memory_at(std::int64_t address) {
  return reinterpret_cast<std::uint8_t*>(address);  // NOLINT(performance-no-int-to-ptr): that is what it is
}

// An instruction with a three-byte VEX prefix of the map 0F38, which all of AMX's have.
class Instruction {
 public:
  Instruction(const std::uint8_t* code, const greg_t* registers) : code_(code), registers_(registers) {
    valid = code[0] == 0xC4 && (code[1] & 0x1F) == 2 && (code[2] & 0x84) == 0;  // 0F38; W0, 128 bits
    if (!valid) return;
    prefix = code[2] & 3;
    opcode = code[3];
    third = 15 - (code[2] >> 3 & 15);
    const int modrm = code[4];
    mode = modrm >> 6;
    reg = (modrm >> 3 & 7) + ((code[1] & 0x80) == 0 ? 8 : 0);
    rm = modrm & 7;
    length = 5;
    if (mode == 3)
      rm += (code[1] & 0x20) == 0 ? 8 : 0;
    else
      find_memory();
  }

  bool valid = false;
  int prefix = 0;  // 0: none, 1: 66, 2: F3, 3: F2
  int opcode = 0, mode = 0, reg = 0, rm = 0, third = 0;
  bool has_sib = false;
  std::int64_t length = 0;
  std::int64_t address = 0;  // of the operand in memory, without the index
  std::int64_t index = 0;    // scaled

 private:
  std::int64_t read(int n) const {
    static constexpr int kOrder[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                       REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                       REG_R12, REG_R13, REG_R14, REG_R15};
    return registers_[kOrder[n]];
  }

  std::int64_t displacement(int bytes) {
    std::int32_t wide = 0;
    if (bytes == 4) std::memcpy(&wide, code_ + length, 4);
    if (bytes == 1) wide = static_cast<std::int8_t>(code_[length]);
    length += bytes;
    return wide;
  }

  void find_memory() {
    const int high_base = (code_[1] & 0x20) == 0 ? 8 : 0, high_index = (code_[1] & 0x40) == 0 ? 8 : 0;
    int base = rm + high_base;
    has_sib = rm == 4;
    bool no_base = false;
    if (has_sib) {
      const int sib = code_[length++];
      const int i = (sib >> 3 & 7) + high_index;
      if (i != 4) index = read(i) * (std::int64_t{1} << (sib >> 6));
      base = (sib & 7) + high_base;
      no_base = (sib & 7) == 5 && mode == 0;
    }
    const bool by_rip = !has_sib && rm == 5 && mode == 0;
    const std::int64_t moved = displacement(mode == 1 ? 1 : mode == 2 || by_rip || no_base ? 4 : 0);
    const std::int64_t from = by_rip    ? reinterpret_cast<std::intptr_t>(code_) + length
                              : no_base ? 0
                                        : read(base);
    address = from + moved;
  }

  const std::uint8_t* code_;
  const greg_t* registers_;
};

bool configure(const std::uint8_t* config) {
  State fresh;
  std::memcpy(fresh.config, config, 64);
  if (config[0] > 1) return false;
  fresh.configured = config[0] == 1;
  for (int i = 2; i < 16; ++i)
    if (config[i] != 0) return false;
  for (int t = 0; t < 16; ++t) {
    const int rows = config[48 + t], row_bytes = config[16 + 2 * t] | config[17 + 2 * t] << 8;
    if (t < 8 ? rows > 16 || row_bytes > 64 : rows != 0 || row_bytes != 0) return false;
  }
  state = fresh;
  return true;
}

// Rows of a tile from or to memory; what is beyond its shape becomes zero when it is loaded.
void load(int t, std::int64_t address, std::int64_t stride) {
  state.tile(t) = {};
  for (int r = 0; r < state.rows(t); ++r)
    std::memcpy(state.tile(t)[static_cast<std::size_t>(r)].data(), memory_at(address + r * stride),
                static_cast<std::size_t>(state.row_bytes(t)));
}

void store(int t, std::int64_t address, std::int64_t stride) {
  for (int r = 0; r < state.rows(t); ++r)
    std::memcpy(memory_at(address + r * stride), state.tile(t)[static_cast<std::size_t>(r)].data(),
                static_cast<std::size_t>(state.row_bytes(t)));
}

bool dot(int sum, int a, int b) {
  if (!state.usable(sum) || !state.usable(a) || !state.usable(b) || sum == a || sum == b || a == b)
    return false;
  if (state.rows(sum) != state.rows(a) || state.row_bytes(sum) != state.row_bytes(b) ||
      state.row_bytes(a) != 4 * state.rows(b) || state.row_bytes(sum) % 4 != 0)
    return false;
  dot_bf16(state.tile(sum), state.tile(a), state.tile(b), state.rows(sum), state.row_bytes(sum) / 4,
           state.rows(b));
  return true;
}

// Whether the instruction is one of AMX's and could be done.
bool run(const Instruction& in) {
  constexpr int kNone = 0, k66 = 1, kF3 = 2, kF2 = 3;
  if (!in.valid || in.reg > 7 || in.third > 7) return false;
  const bool memory = in.mode != 3, no_third = in.third == 0;
  if (in.opcode == 0x49 && no_third) {
    if (in.prefix == kNone && memory && in.reg == 0) return configure(memory_at(in.address + in.index));
    if (in.prefix == k66 && memory && in.reg == 0) {
      std::memcpy(memory_at(in.address + in.index), state.config, 64);
      return true;
    }
    if (in.prefix == kNone && !memory && in.reg == 0 && in.rm == 0) {
      state = State{};
      return true;
    }
    if (in.prefix == kF2 && !memory && in.rm == 0 && state.usable(in.reg)) {
      state.tile(in.reg) = {};
      return true;
    }
    return false;
  }
  if (in.opcode == 0x4B && no_third && memory && in.has_sib && state.usable(in.reg)) {
    if (in.prefix == kF2 || in.prefix == k66) return load(in.reg, in.address, in.index), true;
    if (in.prefix == kF3) return store(in.reg, in.address, in.index), true;
    return false;
  }
  if (in.opcode == 0x5C && in.prefix == kF3 && !memory && in.rm < 8) return dot(in.reg, in.rm, in.third);
  return false;
}

struct sigaction previous;

void handle(int number, siginfo_t* info, void* context) {
  auto* machine = static_cast<ucontext_t*>(context);
  greg_t* registers = machine->uc_mcontext.gregs;
  const Instruction in(memory_at(registers[REG_RIP]), registers);
  if (run(in)) {
    registers[REG_RIP] += in.length;
    emulated_count.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if ((previous.sa_flags & SA_SIGINFO) != 0)
    previous.sa_sigaction(number, info, context);
  else
    sigaction(number, &previous, nullptr);  // the instruction is tried again
}

}  // namespace

void emulate() {
  struct sigaction present {};
  sigaction(SIGILL, nullptr, &present);
  if ((present.sa_flags & SA_SIGINFO) != 0 && present.sa_sigaction == handle) return;
  previous = present;
  struct sigaction action {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  sigaction(SIGILL, &action, nullptr);
}

#else

void emulate() {}

#endif

}  // namespace test::amx
