// The driver's tool, replaced by scripts that answer, fail, hang or are missing.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "ejk/program/machine.hpp"

using namespace ejk;

namespace {

class Tool {
 public:
  explicit Tool(const std::string& script) {
    std::string name = std::filesystem::temp_directory_path() / "ejk_gpu_XXXXXX";
    folder_ = mkdtemp(name.data());
    std::ofstream(path()) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(path(), std::filesystem::perms::owner_all);
  }
  ~Tool() { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ / "tool"; }
  GpuQuery asked(int milliseconds = 20'000) const {
    return query_gpus(path(), std::chrono::milliseconds(milliseconds));
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace

TEST_CASE("each line of the driver's tool is a GPU, whose name may hold commas") {
  const Tool tool("echo 'NVIDIA H100, 80GB HBM3, 535.104.05, 81559'\necho 'Odd one, 535.104.05, [N/A]'");
  const GpuQuery query = tool.asked();
  CHECK(query.outcome == GpuQuery::Outcome::done);
  REQUIRE(query.gpus.size() == 2);
  CHECK(query.gpus[0].name == "NVIDIA H100, 80GB HBM3");
  CHECK(query.gpus[0].driver_version == "535.104.05");
  CHECK(query.gpus[0].memory_bytes == std::int64_t{81559} << 20);
  CHECK(query.gpus[1].name == "Odd one");
  CHECK_FALSE(query.gpus[1].memory_bytes.has_value());
}

TEST_CASE("a tool that fails, prints nonsense or is not there is no error") {
  CHECK(Tool("echo no driver; exit 9").asked().outcome == GpuQuery::Outcome::failed);
  CHECK(Tool("kill -9 $$").asked().outcome == GpuQuery::Outcome::failed);
  CHECK(query_gpus("ejk-has-no-such-tool").outcome == GpuQuery::Outcome::not_run);
  CHECK(query_gpus("/dev/null").outcome == GpuQuery::Outcome::not_run);
  const GpuQuery nonsense = Tool("echo hello; echo; echo ','; cat").asked();
  CHECK(nonsense.outcome == GpuQuery::Outcome::done);
  CHECK(nonsense.gpus.empty());
}

TEST_CASE("a tool that does not end in time is ended, and what it started too") {
  const auto begin = std::chrono::steady_clock::now();
  CHECK(Tool("sleep 60; echo late").asked(100).outcome == GpuQuery::Outcome::not_run);
  CHECK(Tool("exec >/dev/null; sleep 60").asked(100).outcome == GpuQuery::Outcome::not_run);
  CHECK(Tool("while :; do echo x; done").asked(100).outcome == GpuQuery::Outcome::not_run);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
}
