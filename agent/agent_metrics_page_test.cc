// Tests of the metrics page of a complete agent: a scrape of its port after real ranks ran.
#include <absl/strings/match.h>
#include <absl/strings/str_split.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "agent/testing/agent_case.h"
#include "base/temp_dir.h"
#include "base/testing/fake_nvml.h"
#include "base/unique_fd.h"

namespace fsdpd {
namespace {

std::string Fetch(const std::string& endpoint) {
  const std::vector<std::string> parts = absl::StrSplit(endpoint, ':');
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(parts[1])));
  inet_pton(AF_INET, parts[0].c_str(), &address.sin_addr);
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  EXPECT_EQ(send(fd.get(), request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  std::string answer;
  char bytes[4096];
  for (ssize_t n; (n = recv(fd.get(), bytes, sizeof bytes, 0)) > 0;)
    answer.append(bytes, static_cast<size_t>(n));
  const size_t body = answer.find("\r\n\r\n");
  return body == std::string::npos ? "" : answer.substr(body + 4);
}

// Value of a series in the Prometheus text; "" if it is missing.
std::string Value(const std::string& metrics, const std::string& series) {
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(metrics, '\n'))) {
    if (absl::StartsWith(line, series + " ")) return line.substr(series.size() + 1);
  }
  return "";
}

TEST(AgentMetricsPage, MetricsDistinguishFailedFromStoppedRanks) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  coordinator.Send(Launch("fail"));
  coordinator.AwaitExit("fail-k3x9q2", 1, 0);
  coordinator.Send(Launch("stay"));
  coordinator.AwaitReady("stay-k3x9q2", 1, 0);
  coordinator.Send(Stop("stay-k3x9q2", 1, 0));
  coordinator.AwaitExit("stay-k3x9q2", 1, 0);
  const std::string metrics = Fetch(node.agent->metrics_endpoint());
  EXPECT_EQ(Value(metrics, "fsdpd_rank_failed{fsdpd_job=\"fail-k3x9q2\",rank=\"0\"}"), "1");
  EXPECT_EQ(Value(metrics, "fsdpd_rank_failed{fsdpd_job=\"stay-k3x9q2\",rank=\"0\"}"), "");
}

TEST(AgentMetricsPage, ExportsCheckpointMetricsOfRank0) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  v1::CoordinatorMessage launch = Launch("stay");
  launch.mutable_launch()->mutable_spec()->mutable_checkpoint()->set_dir("/runs/7");
  coordinator.Send(launch);
  coordinator.Send(Launch("save"));
  coordinator.AwaitExit("save-k3x9q2", 1, 0);
  coordinator.AwaitReady("stay-k3x9q2", 1, 0);
  const std::string metrics = Fetch(node.agent->metrics_endpoint());
  const std::string saves = "{fsdpd_job=\"save-k3x9q2\",rank=\"0\"}";
  EXPECT_EQ(Value(metrics, "fsdpd_checkpoints_total" + saves), "1");
  EXPECT_EQ(Value(metrics, "fsdpd_checkpoint_failures_total" + saves), "1");
  EXPECT_EQ(Value(metrics, "fsdpd_checkpoint_last_step" + saves), "6");
  const std::string none_yet = "{fsdpd_job=\"stay-k3x9q2\",rank=\"0\"}";
  EXPECT_EQ(Value(metrics, "fsdpd_checkpoint_failures_total" + none_yet), "0");
}

TEST(AgentMetricsPage, ServesMetricsThatPromtoolAccepts) {
  ScriptedCoordinator coordinator;
  TempDir dir;
  {
    Node node(&coordinator);
    coordinator.AwaitRegister(1);
    coordinator.Send(Launch("train", 2, 2, 4));
    coordinator.AwaitExit("train-k3x9q2", 2, 0);
    coordinator.AwaitExit("train-k3x9q2", 2, 1);
    const std::string metrics = Fetch(node.agent->metrics_endpoint());
    const std::string rank = "{fsdpd_job=\"train-k3x9q2\",rank=\"1\"";
    EXPECT_EQ(Value(metrics, "fsdpd_steps_total" + rank + "}"), "3");
    EXPECT_EQ(Value(metrics, "fsdpd_step_seconds_total" + rank + "}"), "6");
    EXPECT_EQ(Value(metrics, "fsdpd_tokens_total" + rank + "}"), "750");
    EXPECT_EQ(Value(metrics, "fsdpd_comm_seconds_total" + rank + ",op=\"all_gather\"}"), "1.5");
    EXPECT_EQ(Value(metrics, "fsdpd_comm_exposed_seconds_total" + rank + ",op=\"all_gather\"}"), "0.375");
    EXPECT_EQ(Value(metrics, "fsdpd_comm_bytes_total" + rank + ",op=\"reduce_scatter\"}"), "0");
    EXPECT_EQ(Value(metrics, "fsdpd_memory_plan_bytes" + rank + ",component=\"optimizer\"}"), "400")
        << "what the coordinator planned";
    EXPECT_EQ(Value(metrics, "fsdpd_rank_up" + rank + "}"), "0");
    EXPECT_EQ(
        Value(metrics, "fsdpd_rank_info" + rank + ",attempt=\"2\",fsdpd_node=\"node-0\",device=\"cpu\"}"),
        "1");
    EXPECT_EQ(Value(metrics, "fsdpd_restarts_total{fsdpd_job=\"train-k3x9q2\"}"), "1");
    EXPECT_EQ(Value(metrics, "fsdpd_agent_connected"), "1");
    EXPECT_EQ(Value(metrics, "fsdpd_agent_slots"), "4");
    EXPECT_EQ(Value(metrics, "fsdpd_build_info{version=\"0.1.0\"}"), "1");
    std::ofstream(dir.File("metrics")) << metrics;
  }
  // After the agent has exited: a subreaper would reap the shell.
  const std::string check =
      "promtool check metrics < " + dir.File("metrics") + " > " + dir.File("verdict") + " 2>&1";
  const int verdict = system(check.c_str());
  std::ifstream said(dir.File("verdict"));
  EXPECT_EQ(verdict, 0) << std::string(std::istreambuf_iterator<char>(said), {});
}

TEST(AgentMetricsPage, ServesGpuMetrics) {
  ASSERT_NE(FakeNvml::Load("base/testing/libfake-nvidia-ml.so"), nullptr);
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  EXPECT_EQ(Fetch(node.agent->metrics_endpoint()).find("fsdpd_gpu_"), std::string::npos);
  node.options.offer.device = v1::DEVICE_CUDA;
  node.Start();
  coordinator.AwaitRegister(2);
  coordinator.Send(Launch("train"));
  coordinator.AwaitExit("train-k3x9q2", 1, 0);
  const std::string power = "fsdpd_gpu_power_watts{fsdpd_node=\"node-0\",device=";
  const auto await = [&](const std::string& who) {
    while (Value(Fetch(node.agent->metrics_endpoint()), power + who) != "100") std::this_thread::yield();
  };
  await("\"cuda:0\",fsdpd_job=\"\",rank=\"\"}");
  coordinator.Send(Stop("train-k3x9q2", 1, 0));
  coordinator.AwaitStopped("train-k3x9q2", 1);  // The next reading shows that its memory is free.
  coordinator.Send(Launch("stay"));
  await("\"cuda:0\",fsdpd_job=\"stay-k3x9q2\",rank=\"0\"}");
  await("\"cuda:1\",fsdpd_job=\"\",rank=\"\"}");
}

}  // namespace
}  // namespace fsdpd
