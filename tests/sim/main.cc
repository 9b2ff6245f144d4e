// Command line of the simulator: runs seeds, and prints the violated invariant and the preceding events of
// the first seed that fails. Exit code 0 if all seeds passed, 1 otherwise, 2 for a usage error.
#include <stdio.h>

#include <CLI/CLI.hpp>

#include "tests/sim/run.h"

int main(int argc, char** argv) {
  uint64_t first = 1;
  int seeds = 1, lines = 60;
  bool verbose = false, all = false;
  CLI::App app("Simulate a coordinator and its agents with random faults", "sim");
  app.add_option("--seed", first, "Set the first seed")->capture_default_str();
  app.add_option("--seeds", seeds, "Set the number of seeds")->capture_default_str();
  app.add_option("--lines", lines, "Print this many log lines of a failed seed")->capture_default_str();
  app.add_flag("--all", all, "Continue after a failed seed");
  app.add_flag("--verbose", verbose, "Print the whole log");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  int failed = 0, jobs = 0;
  double virtual_seconds = 0;
  for (uint64_t seed = first; seed < first + static_cast<uint64_t>(seeds); ++seed) {
    const fsdpd::sim::Outcome outcome = fsdpd::sim::Run(seed, verbose);
    jobs += outcome.jobs;
    virtual_seconds += outcome.virtual_seconds;
    if (outcome.violation.empty()) continue;
    ++failed;
    printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), outcome.violation.c_str());
    const size_t from = outcome.lines.size() > static_cast<size_t>(lines) ? outcome.lines.size() - lines : 0;
    for (size_t i = from; !verbose && i < outcome.lines.size(); ++i) printf("%s\n", outcome.lines[i].c_str());
    fflush(stdout);
    if (!all) break;
  }
  printf("%d failed; %d jobs in %.0f simulated hours\n", failed, jobs, virtual_seconds / 3600);
  return failed == 0 ? 0 : 1;
}
