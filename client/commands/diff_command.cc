// Command `diff`: comparison of two specs after defaults and derived values are filled in.
#include <absl/strings/str_cat.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json_quote.h"
#include "base/process/error_line.h"
#include "client/commands/commands.h"
#include "client/commands/session.h"
#include "client/connect/job_choice.h"
#include "client/connect/outcome.h"
#include "client/spec/spec_diff.h"
#include "client/spec/spec_file.h"
#include "client/text/job_text.h"
#include "client/text/message_output.h"
#include "client/text/text_table.h"
#include "fsdp/plan/plan.h"
#include "fsdp/plan/spec/defaults.h"

namespace fsdpd {
namespace {

// Reads the specs of the comparison, each from a file or a job. Connects to the coordinator on first use.
// Read() returns an exit code after it has reported an error.
class Sides {
 public:
  Sides(const CommandLine& line, Console* console) : line_(line), console_(*console) {}

  std::optional<int> Read(const std::string& name, bool is_file, v1::JobSpec* spec) {
    std::error_code error;
    if (is_file || name == "-" || std::filesystem::exists(name, error)) return ReadFile(name, spec);
    if (session_ == nullptr) {
      session_ = std::make_unique<Session>(line_, &console_);
      if (const absl::Status status = session_->client().Connect(); !status.ok()) {
        ReportNoFile(name);
        return session_->Fail(status);
      }
    }
    const absl::StatusOr<v1::Job> job = FindJob(&session_->client(), name);
    if (absl::IsNotFound(job.status())) ReportNoFile(name);
    if (!job.ok()) return session_->Fail(job.status());
    *spec = job->spec();
    return std::nullopt;
  }

  // Fills in defaults and chosen values, as far as they can be determined without nodes.
  v1::JobSpec Filled(const std::string& name, const v1::JobSpec& spec) {
    Plan plan = MakePlan(spec, /*budget_bytes_per_rank=*/0);
    if (plan.accepted()) return plan.resolved;
    console_.err << Escaped(name)
                 << " is not a valid spec (see `fsdpctl validate`); derived values are not filled in\n";
    return WithDefaults(spec, nullptr);
  }

 private:
  void ReportNoFile(const std::string& name) {
    console_.err << Escaped(name) << ": no such file; treated as the id of a job\n";
  }

  std::optional<int> ReadFile(const std::string& name, v1::JobSpec* spec) {
    const absl::StatusOr<SpecText> text = LoadSpec(name, {}, console_.in);
    if (!text.ok()) {
      console_.err << "fsdpctl: " << WithErrorId(text.status().message(), "FILE_ERROR") << "\n";
      return kExitUsage;
    }
    if (HasErrors(text->violations)) return ReportViolations(text->violations, &console_);
    *spec = text->spec;
    return std::nullopt;
  }

  const CommandLine& line_;
  Console& console_;
  std::unique_ptr<Session> session_;
};

std::string Json(const std::optional<std::string>& text, bool is_literal) {
  if (!text.has_value()) return "null";
  return is_literal ? *text : JsonQuoted(*text);
}

// A JSON list, which is valid YAML too.
std::string DataOf(const std::vector<FieldDifference>& differences) {
  std::string text = "[";
  for (const FieldDifference& each : differences) {
    absl::StrAppend(&text, text.size() > 1 ? ",\n " : "", "{\"field\": ", JsonQuoted(each.field),
                    ", \"first\": ", Json(each.first, each.is_literal),
                    ", \"second\": ", Json(each.second, each.is_literal), "}");
  }
  return text + "]\n";
}

std::string TableOf(const std::vector<FieldDifference>& differences, const std::string& first,
                    const std::string& second, int width) {
  TextTable table({"FIELD", OneLine(first), OneLine(second)});
  for (const FieldDifference& each : differences)
    table.Add({each.field, OneLine(each.first.value_or("-")), OneLine(each.second.value_or("-"))});
  return table.Render(0, width);
}

}  // namespace

int RunDiff(const CommandLine& line, Console* console) {
  const bool is_file = !line.file.empty();
  const std::string& second_name = is_file ? line.file : line.target;
  if (second_name.empty()) {
    console->err << "fsdpctl: diff requires FIRST and SECOND, or FIRST and -f FILE [INVALID_FLAG]\n";
    return kExitUsage;
  }
  Sides sides(line, console);
  v1::JobSpec first, second;
  if (const std::optional<int> code = sides.Read(line.first, /*is_file=*/false, &first)) return *code;
  if (const std::optional<int> code = sides.Read(second_name, is_file, &second)) return *code;
  v1::JobSpec filled_first = sides.Filled(line.first, first),
              filled_second = sides.Filled(second_name, second);
  const std::string of_first = PackageText(first.model()), of_second = PackageText(second.model());
  if (!IsData(line.output)) {
    for (v1::JobSpec* spec : {&first, &second, &filled_first, &filled_second})
      *spec = WithShortPackage(*spec);
  }
  std::vector<FieldDifference> differences = DifferencesOf(filled_first, filled_second, first, second);
  if (!IsData(line.output) && of_first != of_second)
    differences.push_back({"model.package", of_first, of_second});
  if (IsData(line.output)) {
    console->out << DataOf(differences);
  } else if (!differences.empty()) {
    console->out << TableOf(differences, line.first, second_name, console->width());
  }
  return differences.empty() ? kExitOk : kExitSpecsDiffer;
}

}  // namespace fsdpd
