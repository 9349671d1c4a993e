// Parent and child of a worker process. Messages are a length and bytes over a socket; a reply begins with an
// error flag. A crash closes the socket; a CPU timer ends an endless request. Cost: one message each way; a
// start takes one or two milliseconds.
// tests: tests/io/test_worker.cpp
#include "io/worker.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
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

Error malformed_answer() { return Error(Error::Kind::input, "its reading process gave a malformed answer"); }

namespace {

// A longer answer comes from a child whose memory is damaged.
constexpr std::int64_t kMaxMessage = std::int64_t{64} << 20;

// What can become of a message: 0 all of it went through; kGone: the other side is gone; else an errno.
constexpr int kGone = -1;

// Calls move(done, left) until n bytes went through.
template <class Move>
int move_all(std::size_t n, Move&& move) {
  for (std::size_t done = 0; done < n;) {
    const ssize_t moved = move(done, n - done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return moved == 0 || errno == EPIPE || errno == ECONNRESET ? kGone : errno;
    done += static_cast<std::size_t>(moved);
  }
  return 0;
}

int send_all(int socket, const void* data, std::size_t n) {
  const auto* from = static_cast<const char*>(data);
  return move_all(
      n, [&](std::size_t done, std::size_t left) { return ::send(socket, from + done, left, MSG_NOSIGNAL); });
}

int receive_all(int socket, void* data, std::size_t n) {
  auto* to = static_cast<char*>(data);
  return move_all(n, [&](std::size_t done, std::size_t left) { return ::recv(socket, to + done, left, 0); });
}

int send_message(int socket, const Message& message) {
  const auto size = static_cast<std::int64_t>(message.bytes().size());
  const int failed = send_all(socket, &size, sizeof size);
  return failed != 0 ? failed : send_all(socket, message.bytes().data(), message.bytes().size());
}

int receive_message(int socket, Message& message) {
  std::int64_t size = 0;
  if (const int failed = receive_all(socket, &size, sizeof size); failed != 0) return failed;
  if (size < 0 || size > kMaxMessage) throw malformed_answer();
  std::string bytes(static_cast<std::size_t>(size), '\0');
  if (const int failed = receive_all(socket, bytes.data(), bytes.size()); failed != 0) return failed;
  message = Message(std::move(bytes));
  return 0;
}

constexpr int kSocket = STDERR_FILENO + 1;  // where the child keeps its end

enum class Outcome : std::int64_t { answer, error };

// An error that the child reported; the child continues.
struct Served {
  Error error;
};

// The child ends with its parent: a signal comes when the socket closes (and with messages).
// PR_SET_PDEATHSIG would end it with the parent's thread.
extern "C" void end_with_parent(int) {
  const int before = errno;
  pollfd socket{kSocket, POLLIN, 0};
  if (poll(&socket, 1, 0) > 0 && (socket.revents & POLLHUP) != 0) _exit(0);
  errno = before;
}

void handle(int signal, void (*how)(int)) {
  struct sigaction action {};
  action.sa_handler = how;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

void become_a_child(int socket, int file) {
  // The terminal's signals are for the parent to act on; the child follows when its socket closes.
  for (int signal = 1; signal < NSIG; ++signal) {
    const bool ignored = signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT ||
                         signal == SIGPIPE || signal == SIGXFSZ;  // the last two become errors of write()
    handle(signal, ignored ? SIG_IGN : SIG_DFL);
  }
  handle(SIGIO, end_with_parent);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);

  // Each may have a number that another is to get.
  if (socket < kSocket) socket = fcntl(socket, F_DUPFD, kSocket);
  if (file >= 0) dup2(file, Worker::kFile);
  const int null = open("/dev/null", O_RDWR);
  if (file < 0) dup2(null, Worker::kFile);
  dup2(null, STDOUT_FILENO);
#ifndef __SANITIZE_ADDRESS__  // whose reports should be seen
  dup2(null, STDERR_FILENO);
#endif
  if (socket != kSocket) dup2(socket, kSocket);
  closefrom(kSocket + 1);
  fcntl(kSocket, F_SETOWN, getpid());
  fcntl(kSocket, F_SETFL, fcntl(kSocket, F_GETFL) | O_ASYNC);
  end_with_parent(SIGIO);  // it may have ended before there was a signal for that

  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
}

// What f returns or throws, as an answer.
template <class F>
Message answer_of(F&& f) {
  const auto failed = [](const Error& error) {
    Message reply;
    reply.put(static_cast<std::int64_t>(Outcome::error))
        .put(static_cast<std::int64_t>(error.kind()))
        .put(static_cast<std::int64_t>(error.code()))
        .put(error.subject())
        .put(error.message())
        .put(error.hint());
    return reply;
  };
  try {
    const Message answer = f();
    return Message().put(static_cast<std::int64_t>(Outcome::answer)).put(answer.bytes());
  } catch (const Error& e) {
    return failed(e);
  } catch (const std::bad_alloc&) {
    return failed(Error(Error::Kind::input, "reading it takes more memory than a sound file would need"));
  } catch (const std::exception& e) {
    return failed(Error(Error::Kind::internal, e.what()));
  }
}

void serve_requests(const Worker::Serve& serve, const Worker::Setup& setup, std::span<std::byte> buffer) {
  const Message started = answer_of([&] {
    if (setup.start) setup.start();
    return Message();
  });
  if (send_message(kSocket, started) != 0) return;
  Message request;
  while (receive_message(kSocket, request) == 0) {
    // A loop without end is stopped by SIGPROF, whose default is to kill.
    const itimerval limit{{0, 0}, {setup.request_seconds, 0}};
    setitimer(ITIMER_PROF, &limit, nullptr);
    if (send_message(kSocket, answer_of([&] { return serve(request, buffer); })) != 0) return;
  }
}

// No destructor of the parent's objects may run here: it would remove files that the parent is writing.
[[noreturn]] void run_child(int socket, const Worker::Serve& serve, const Worker::Setup& setup,
                            std::span<std::byte> buffer) noexcept {
  try {
    become_a_child(socket, setup.file);
    serve_requests(serve, setup, buffer);
  } catch (...) {
    _exit(1);
  }
  _exit(0);
}

// Counts steps, not clock time: a program that was stopped has not waited.
bool comes_within(int socket, int seconds) {
  constexpr int kStep = 100;  // milliseconds
  for (int steps = seconds * 1000 / kStep; steps > 0; --steps) {
    pollfd ready{socket, POLLIN, 0};
    if (poll(&ready, 1, kStep) > 0) return true;
  }
  return false;
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
  if (bytes_.size() - at_ < sizeof value) throw malformed_answer();
  std::memcpy(&value, bytes_.data() + at_, sizeof value);
  at_ += sizeof value;
  return value;
}

std::string Message::text() {
  const std::int64_t size = integer();
  if (size < 0 || size > static_cast<std::int64_t>(bytes_.size() - at_)) throw malformed_answer();
  at_ += static_cast<std::size_t>(size);
  return bytes_.substr(at_ - static_cast<std::size_t>(size), static_cast<std::size_t>(size));
}

Shape Message::shape() {
  const std::int64_t rank = integer();
  if (rank < 0 || rank > static_cast<std::int64_t>(bytes_.size() - at_)) throw malformed_answer();
  Shape shape(static_cast<std::size_t>(rank));
  for (std::int64_t& length : shape) length = integer();
  return shape;
}

Worker::Worker(const Serve& serve, Setup setup)
    : setup_(std::move(setup)),
      owner_(getpid()),
      buffer_(Mapping::of_memory(kBufferBytes, Mapping::Sharing::with_children)) {
  const std::string process = "no process for " + setup_.library;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw system_error(Error::Kind::budget, process, errno);
  socket_ = File(ends[0]);
  const File other(ends[1]);
  child_ = fork();
  if (child_ == 0)
    run_child(other.fd(), serve, setup_, {buffer_.data(), static_cast<std::size_t>(kBufferBytes)});
  if (child_ < 0) throw system_error(Error::Kind::budget, process, errno);
}

Worker::~Worker() { stop(); }

// Ends the child; returns how it ended before, if it had. In a forked process only closes the socket.
int Worker::stop() {
  int status = 0;
  if (child_ < 0) return status;
  if (owner_ == getpid()) {
    kill(child_, SIGKILL);  // between requests it has nothing to finish
    while (waitpid(child_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  child_ = -1;
  socket_ = File();
  return status;
}

void Worker::end(const Error& why) {
  stop();
  ended_ = why;
  throw why;
}

Message Worker::receive() {
  Message reply;
  const int failed = receive_message(socket_.fd(), reply);
  if (failed == kGone) end(death());
  if (failed != 0)
    end(system_error(Error::Kind::budget, "no answer from the process of " + setup_.library, failed));
  if (reply.integer() == static_cast<std::int64_t>(Outcome::answer)) return Message(reply.text());
  const std::int64_t kind = reply.integer(), code = reply.integer();
  if (kind < 0 || kind > static_cast<std::int64_t>(Error::Kind::internal)) throw malformed_answer();
  if (code < 0 || code > static_cast<std::int64_t>(Error::Code::unsupported)) throw malformed_answer();
  const std::string subject = reply.text();
  Error error(static_cast<Error::Kind>(kind), reply.text(), static_cast<Error::Code>(code));
  throw Served{std::move(error.about(subject).hint(reply.text()))};
}

Message Worker::call(const Message& request) {
  if (owner_ != getpid())
    throw Error(Error::Kind::budget,
                "the process of " + setup_.library + " belongs to the process that forked this one");
  if (ended_) throw *ended_;
  try {
    if (!started_) {
      if (!comes_within(socket_.fd(), setup_.start_seconds))
        end(Error(Error::Kind::budget, fmt::format("{} did not start within {} s in a process of its own",
                                                   setup_.library, setup_.start_seconds)));
      started_ = true;
      receive();
    }
    const int failed = send_message(socket_.fd(), request);
    if (failed == kGone) end(death());
    if (failed != 0)
      end(system_error(Error::Kind::budget, "no message to the process of " + setup_.library, failed));
    return receive();
  } catch (const Served& served) {
    throw served.error;
  } catch (const Error& error) {  // what may still come is no answer to the next request
    if (!ended_) end(error);
    throw;
  }
}

Error Worker::death() {
  const int status = stop();
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
    return Error(Error::Kind::budget,
                 fmt::format("the process of {} was killed, perhaps for want of memory", setup_.library));
  const bool endless = WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF;
  return Error(Error::Kind::input,
               endless ? fmt::format("{} came to no end on it in {} s: the file is damaged", setup_.library,
                                     setup_.request_seconds)
                       : fmt::format("{} crashed on it: the file is damaged", setup_.library));
}

void allow_memory(std::int64_t bytes) {
  // What was mapped before the fork counts too: so the limit is set above it.
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
