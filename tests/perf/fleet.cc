// Program that simulates thousands of agents (fleet_agent.h) in one process, for tests/perf/control_plane.py.
// Reads one command per line from stdin: `drop` (close all connections together), `finish N` (N attempts end
// normally, on as many agents). Exits at the end of stdin. Prints its state as a JSON line ten times per
// second: {"attached": ..., "attempts": ..., "reports": ..., "streams": ...}.
#include <absl/strings/str_format.h>
#include <absl/time/clock.h>
#include <stdio.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/perf/fleet_agent.h"

namespace fsdpd::perf {
namespace {

struct Orders {
  std::atomic<bool> drop{false}, end{false};
  std::atomic<int> finish{0};
};

void Listen(Orders* orders) {
  std::string word;
  while (std::cin >> word) {
    int count = 0;
    if (word == "drop") {
      orders->drop = true;
    } else if (word == "finish" && std::cin >> count) {
      orders->finish += count;
    } else {
      fprintf(stderr, "unknown command: %s\n", word.c_str());
    }
  }
  orders->end = true;
}

void SayWhereItStands(const std::vector<std::unique_ptr<FleetAgent>>& agents) {
  int attached = 0, attempts = 0;
  int64_t reports = 0, streams = 0;
  for (const auto& agent : agents) {
    const FleetAgent::Counts counts = agent->counts();
    attached += counts.attached ? 1 : 0;
    attempts += counts.attempts;
    reports += counts.reports;
    streams += counts.streams;
  }
  absl::PrintF("{\"attached\": %d, \"attempts\": %d, \"reports\": %d, \"streams\": %d}\n", attached, attempts,
               reports, streams);
  fflush(stdout);
}

void Run(std::vector<std::unique_ptr<FleetAgent>> agents, Orders* orders) {
  constexpr absl::Duration kTick = absl::Milliseconds(50);
  for (int tick = 0; !orders->end; ++tick) {
    const absl::Time now = absl::Now();
    if (orders->drop.exchange(false)) {
      for (const auto& agent : agents) agent->Drop();
    }
    for (const auto& agent : agents) {
      if (orders->finish > 0 && agent->Finish(now)) --orders->finish;
      agent->Tick(now);
    }
    if (tick % 2 == 0) SayWhereItStands(agents);
    absl::SleepFor(now + kTick - absl::Now());
  }
}

}  // namespace
}  // namespace fsdpd::perf

int main(int argc, char** argv) {
  using fsdpd::perf::FleetAgent;
  FleetAgent::Options options;
  int agents = 2000;
  CLI::App app("Agents without ranks, for benchmarks of a coordinator.", "fleet");
  app.add_option("--coordinator", options.coordinator, "HOST:PORT, in plaintext")->required();
  app.add_option("--agents", agents, "How many")->capture_default_str()->check(CLI::Range(1, 4096));
  app.add_option("--slots", options.slots, "Of each")->capture_default_str()->check(CLI::Range(1, 1024));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  std::vector<std::unique_ptr<FleetAgent>> fleet;
  for (int i = 0; i < agents; ++i) {
    options.node = absl::StrFormat("fleet-%04d", i);
    options.seed = static_cast<uint32_t>(i);
    fleet.push_back(std::make_unique<FleetAgent>(options));
  }
  fsdpd::perf::Orders orders;
  std::thread listener([&orders] { fsdpd::perf::Listen(&orders); });
  fsdpd::perf::Run(std::move(fleet), &orders);
  listener.join();
  return 0;
}
