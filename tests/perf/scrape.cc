// Benchmark of an agent's scrape with 64 ranks, including text and transport: prints percentiles and the size
// of the response, and judges nothing. The ratio to an agent without ranks is the cost of ranks.
//
//   .build/bin/tests/perf/scrape [SCRAPES]
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <arpa/inet.h>
#include <prometheus/text_serializer.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "agent/metrics/metrics_exporter.h"
#include "base/check.h"
#include "base/net/address.h"
#include "base/net/metrics_server.h"
#include "base/unique_fd.h"

namespace fsdpd {
namespace {

constexpr int kRanks = 64;

v1::StepReport Step() {
  v1::StepReport report;
  report.set_step(1000);
  report.set_step_seconds(0.7317);
  report.set_loss(2.34567);
  report.set_tokens(1 << 20);
  report.mutable_memory()->set_peak_bytes(int64_t{70} << 30);
  report.mutable_memory()->mutable_spike()->set_instruction("Backward layer.31 mb 0");
  for (const v1::CommOp op : {v1::COMM_OP_ALL_GATHER, v1::COMM_OP_REDUCE_SCATTER, v1::COMM_OP_ALL_REDUCE}) {
    v1::OpTime* time = report.add_ops();
    time->set_op(op);
    time->set_seconds(0.123456);
    time->set_bytes(int64_t{3} << 30);
  }
  return report;
}

v1::MemoryPlan MemoryPlanOf() {
  v1::MemoryPlan plan;
  for (const char* name : {"main_params", "optimizer", "gradients", "replica", "gather_buffers",
                           "reduce_buffers", "activations", "workspace", "library", "fragmentation"}) {
    plan.add_components()->set_name(name);
    plan.mutable_components()->rbegin()->set_bytes(int64_t{5} << 30);
  }
  return plan;
}

std::string Scrape(const HostPort& at) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(at.port));
  FSDPD_CHECK(inet_pton(AF_INET, at.host.c_str(), &address.sin_addr) == 1);
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  FSDPD_CHECK(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  const std::string request = "GET /metrics HTTP/1.1\r\n\r\n";
  FSDPD_CHECK(send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) ==
              static_cast<ssize_t>(request.size()));
  std::string answer;
  char part[1 << 16];
  ssize_t n = 0;
  while ((n = recv(fd.get(), part, sizeof part, 0)) > 0) answer.append(part, static_cast<size_t>(n));
  FSDPD_CHECK(n == 0 && absl::StartsWith(answer, "HTTP/1.1 200 "));
  return answer;
}

int LinesWith(const std::string& answer, const char* head) {
  const std::vector<absl::string_view> lines = absl::StrSplit(answer, '\n');
  return static_cast<int>(std::count_if(
      lines.begin(), lines.end(), [head](absl::string_view line) { return absl::StartsWith(line, head); }));
}

void Time(const char* what, MetricsExporter* exporter, int scrapes) {
  const auto server = MetricsServer::Start(
      "127.0.0.1:0", [&] { return prometheus::TextSerializer().Serialize(exporter->Collect()); });
  FSDPD_CHECK(server.ok());
  const HostPort at = *ParseHostPort((*server)->endpoint());
  std::vector<double> ms;
  std::string answer;
  for (int i = 0; i < scrapes; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    answer = Scrape(at);
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(ms.begin(), ms.end());
  printf("%-10s p50 %.2f ms, p99 %.2f ms, %zu bytes, %d series, %d ranks up, %d scrapes\n", what,
         ms[ms.size() / 2], ms[ms.size() * 99 / 100], answer.size(), LinesWith(answer, "fsdpd_"),
         LinesWith(answer, "fsdpd_rank_up{"), scrapes);
}

void Run(int scrapes) {
  MetricsExporter exporter("node-0", kRanks, Clock::Real());
  Time("no ranks", &exporter, scrapes);
  for (int rank = 0; rank < kRanks; ++rank) {
    const RankId id{{"llama3-8b-abcdef", 1}, rank};
    exporter.RankLaunched(id, absl::StrCat("cuda:", rank));
    exporter.RankPlanned(id, MemoryPlanOf());
    exporter.RankReady(id, /*steps=*/100'000);
    exporter.RankSaves(id);
    exporter.RankStepped(id, kRanks, Step());
  }
  Time("64 ranks", &exporter, scrapes);
}

}  // namespace
}  // namespace fsdpd

int main(int argc, char** argv) { fsdpd::Run(argc > 1 ? std::max(1, atoi(argv[1])) : 1000); }
