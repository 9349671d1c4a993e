// tests: tests/io/test_worker.cpp
#include "io/worker.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

namespace ejk::io {

namespace {

// An answer longer than this is the babble of a child whose memory is damaged.
constexpr std::int64_t kMaxMessage = std::int64_t{64} << 20;

[[noreturn]] void malformed() {
  throw Error(Error::Kind::input, "its reading process gave a malformed answer");
}

// Both return false when the other side is gone.
bool send_all(int socket, const void* data, std::size_t n) {
  const auto* from = static_cast<const char*>(data);
  while (n > 0) {
    const ssize_t sent = ::send(socket, from, n, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    from += sent, n -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool receive_all(int socket, void* data, std::size_t n) {
  auto* to = static_cast<char*>(data);
  while (n > 0) {
    const ssize_t got = ::recv(socket, to, n, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got, n -= static_cast<std::size_t>(got);
  }
  return true;
}

bool send_message(int socket, const Message& message) {
  const auto size = static_cast<std::int64_t>(message.bytes().size());
  return send_all(socket, &size, sizeof size) &&
         send_all(socket, message.bytes().data(), message.bytes().size());
}

bool receive_message(int socket, Message& message) {
  std::int64_t size = 0;
  if (!receive_all(socket, &size, sizeof size)) return false;
  if (size < 0 || size > kMaxMessage) malformed();
  std::string bytes(static_cast<std::size_t>(size), '\0');
  if (!receive_all(socket, bytes.data(), bytes.size())) return false;
  message = Message(std::move(bytes));
  return true;
}

constexpr int kSocket = STDERR_FILENO + 1;  // where the child keeps its end

enum class Outcome : std::int64_t { answer, error };

void become_a_child(int socket) {
  // The terminal's signals are for the parent to act on; the child follows when its socket closes.
  struct sigaction action {};
  for (int signal = 1; signal < NSIG; ++signal) {
    const bool ignored = signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT ||
                         signal == SIGPIPE || signal == SIGXFSZ;  // the last two become errors of write()
    action.sa_handler = ignored ? SIG_IGN : SIG_DFL;
    sigaction(signal, &action, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);

  const int null = open("/dev/null", O_RDWR);
  dup2(null, STDIN_FILENO);
  dup2(null, STDOUT_FILENO);
#ifndef __SANITIZE_ADDRESS__  // whose reports should be seen
  dup2(null, STDERR_FILENO);
#endif
  dup2(socket, kSocket);
  closefrom(kSocket + 1);

  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
}

[[noreturn]] void run_child(int socket, const Worker::Serve& serve, std::span<std::byte> buffer) {
  become_a_child(socket);
  Message request;
  while (receive_message(kSocket, request)) {
    // A loop without end is stopped by SIGPROF, whose default is to kill.
    const itimerval limit{{0, 0}, {Worker::kRequestSeconds, 0}};
    setitimer(ITIMER_PROF, &limit, nullptr);
    Message reply;
    const auto fail = [&](const Error& error) {
      reply = Message();
      reply.put(static_cast<std::int64_t>(Outcome::error))
          .put(static_cast<std::int64_t>(error.kind()))
          .put(static_cast<std::int64_t>(error.reason()))
          .put(error.message())
          .put(error.hint());
    };
    try {
      const Message answer = serve(request, buffer);
      reply.put(static_cast<std::int64_t>(Outcome::answer)).put(answer.bytes());
    } catch (const Error& e) {
      fail(e);
    } catch (const std::bad_alloc&) {
      fail(Error(Error::Kind::input, "reading it takes more memory than a sound file would need"));
    } catch (const std::exception& e) {
      fail(Error(Error::Kind::internal, e.what()));
    }
    if (!send_message(kSocket, reply)) break;
  }
  _exit(0);
}

}  // namespace

Message& Message::put(std::int64_t value) {
  bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  return *this;
}

Message& Message::put(std::string_view text) {
  put(static_cast<std::int64_t>(text.size()));
  bytes_ += text;
  return *this;
}

Message& Message::put(const Shape& shape) {
  put(static_cast<std::int64_t>(shape.size()));
  for (const std::int64_t length : shape) put(length);
  return *this;
}

std::int64_t Message::integer() {
  std::int64_t value = 0;
  if (bytes_.size() - at_ < sizeof value) malformed();
  std::memcpy(&value, bytes_.data() + at_, sizeof value);
  at_ += sizeof value;
  return value;
}

std::string Message::text() {
  const std::int64_t size = integer();
  if (size < 0 || size > static_cast<std::int64_t>(bytes_.size() - at_)) malformed();
  at_ += static_cast<std::size_t>(size);
  return bytes_.substr(at_ - static_cast<std::size_t>(size), static_cast<std::size_t>(size));
}

Shape Message::shape() {
  const std::int64_t rank = integer();
  if (rank < 0 || rank > static_cast<std::int64_t>(bytes_.size() - at_)) malformed();
  Shape shape(static_cast<std::size_t>(rank));
  for (std::int64_t& length : shape) length = integer();
  return shape;
}

Worker::Worker(const Serve& serve, std::string library)
    : library_(std::move(library)),
      buffer_(Mapping::of_memory(kBufferBytes, Mapping::Sharing::with_children)) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw system_error(Error::Kind::internal, "socketpair", errno);
  socket_ = File(ends[0]);
  File other(ends[1]);
  child_ = fork();
  if (child_ == 0) run_child(other.fd(), serve, {buffer_.data(), static_cast<std::size_t>(kBufferBytes)});
  if (child_ < 0) throw system_error(Error::Kind::internal, "fork", errno);
}

Worker::~Worker() { stop(); }

void Worker::stop() {
  if (child_ < 0) return;
  kill(child_, SIGKILL);  // between requests it has nothing to finish
  while (waitpid(std::exchange(child_, -1), nullptr, 0) < 0 && errno == EINTR) {
  }
}

Message Worker::call(const Message& request) {
  Message reply;
  if (child_ < 0 || !send_message(socket_.fd(), request) || !receive_message(socket_.fd(), reply))
    throw_death();
  if (reply.integer() == static_cast<std::int64_t>(Outcome::answer)) return Message(reply.text());
  const std::int64_t kind = reply.integer(), reason = reply.integer();
  if (kind < 0 || kind > static_cast<std::int64_t>(Error::Kind::internal)) malformed();
  if (reason < 0 || reason > static_cast<std::int64_t>(Error::Reason::unsupported)) malformed();
  Error error(static_cast<Error::Kind>(kind), reply.text(), static_cast<Error::Reason>(reason));
  throw error.hint(reply.text());
}

void Worker::throw_death() {
  int status = 0;
  if (child_ >= 0) {
    while (waitpid(child_, &status, 0) < 0 && errno == EINTR) {
    }
    child_ = -1;
  }
  const bool endless = WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF;
  throw Error(
      Error::Kind::input,
      endless ? fmt::format("{} came to no end on it in {} s: the file is damaged", library_, kRequestSeconds)
              : fmt::format("{} crashed on it: the file is damaged", library_));
}

void allow_memory(std::int64_t bytes) {
  // What was mapped before the fork is the parent's affair, but counts: so the limit is set above it.
  long pages = 0;
  if (std::FILE* statm = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(statm, "%ld", &pages) != 1) pages = 0;
    std::fclose(statm);
  }
  rlimit limit{};
  if (pages == 0 || getrlimit(RLIMIT_AS, &limit) != 0) return;
  const auto wanted = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + bytes);
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  setrlimit(RLIMIT_AS, &limit);
}

}  // namespace ejk::io
