#include "client/commands.h"
#include "client/migrate/job_of_megatron.h"
#include "client/migrate/megatron_rules.h"
#include "client/outcome.h"
#include "client/spec_file.h"
#include "client/spec_print.h"
#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

void Append(SpecFaults* faults, const SpecFaults& more) {
  faults->insert(faults->end(), more.begin(), more.end());
}

// Faults of the spec that was made, which has no lines yet: they carry its fields.
SpecFaults FaultsOf(const v1::JobSpec& job, const std::vector<std::string>& unread) {
  SpecFaults faults;
  for (const Violation& violation : CheckJob(job, unread)) faults.push_back({{}, violation});
  return faults;
}

}  // namespace

int RunMigrateCommand(const CommandLine& line, Console* console) {
  const absl::StatusOr<std::string> text = ReadText(line.file, console->in);
  if (!text.ok()) {
    console->err << "fsdpctl: " << text.status().message() << "\n";
    return kExitUsage;
  }
  const std::string file = line.file == "-" ? "<stdin>" : line.file;
  Settings settings;
  SpecFaults faults = ReadSettings(*text, file, &settings);
  v1::JobSpec job;
  if (faults.empty()) {
    faults = CheckMegatron(&settings);
    Append(&faults, JobOfMegatron(&settings, {line.nodes, line.ranks_per_node}, file, &job));
    job.set_name(line.name);
    Append(&faults, FaultsOf(job, UnreadFields(faults)));
  }
  const int code = ReportFaults(faults, console);
  if (code == kExitOk) console->out << (line.output == "json" ? ToJson(job) : ToYaml(job));
  return code;
}

}  // namespace fsdpd
