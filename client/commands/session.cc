#include "client/commands/session.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "base/clock.h"
#include "base/net/tls_files.h"
#include "base/process/error_line.h"
#include "client/commands/contexts.h"
#include "client/connect/job_follow.h"
#include "client/connect/outcome.h"
#include "client/text/json_path.h"
#include "client/text/message_output.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxTokenBytes = 4096;  // Half of gRPC's 8 KiB limit for the metadata of a call.

CoordinatorClient::Options OptionsOf(const CommandLine& line) {
  CoordinatorClient::Options options;
  options.call_timeout = absl::Seconds(line.timeout_seconds);
  if (line.flags.count("--timeout") > 0) options.search_timeout = options.call_timeout;
  options.trusted = line.trusted;
  options.token = line.token;
  options.repeats = line.command != "get" || !line.watch;
  return options;
}

}  // namespace

absl::Status ReadAccess(CommandLine* line) {
  if (const absl::Status applied = ApplyContext(line); !applied.ok())
    return absl::Status(applied.code(), WithErrorId(applied.message(), "INVALID_CONTEXT"));
  if (line->coordinator_ca.empty()) return absl::OkStatus();  // A token is sent over TLS only.
  FSDPD_ASSIGN_OR_RETURN(const TlsIdentity read,
                         ReadTlsFiles({line->coordinator_ca, "", ""}, Clock::Real()->Wall()));
  line->trusted = read.trusted;
  if (!line->token_file.empty()) {
    FSDPD_ASSIGN_OR_RETURN(line->token, ReadSecretLine(line->token_file));
  } else if (const char* token = std::getenv("FSDPD_TOKEN"); token != nullptr && line->takes_token_variable) {
    line->token = token;
    if (!std::all_of(line->token.begin(), line->token.end(), absl::ascii_isgraph)) {
      return absl::InvalidArgumentError(
          "FSDPD_TOKEN: must be one word without spaces or line breaks [INVALID_TOKEN]");
    }
  }
  // Checked here, because gRPC's error for oversized metadata does not mention the token.
  if (line->token.size() <= kMaxTokenBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(line->token_file.empty() ? "FSDPD_TOKEN" : line->token_file,
                   ": the token is too large (got ", line->token.size(), " bytes, at most ", kMaxTokenBytes,
                   "); use one written by `fsdpctl token new` [INVALID_TOKEN]"));
}

Session::Session(const CommandLine& line, Console* console)
    : line_(line), console_(*console), client_(line.server, OptionsOf(line)), screen_(console, line.output) {}

int Session::Fail(const absl::Status& status, const std::string& job) {
  return ReportError(status, line_.server, &console_, job);
}

absl::StatusOr<std::string> Session::DataOf(const google::protobuf::Message& message) const {
  absl::string_view form = line_.output;
  if (!absl::ConsumePrefix(&form, kJsonPathForm)) return Rendered(message, line_.output);
  FSDPD_ASSIGN_OR_RETURN(const JsonPath path, JsonPath::Parse(form));
  FSDPD_ASSIGN_OR_RETURN(std::string text, path.Render(message));
  if (!text.empty() && text.back() != '\n') text += '\n';
  return text;
}

int Session::Show(const google::protobuf::Message& message) {
  const absl::StatusOr<std::string> text = DataOf(message);
  if (!text.ok()) return Fail(text.status());
  console_.out << *text;
  return kExitOk;
}

// Opens the file only once, because the reader of a named pipe treats the first close as the end.
absl::Status Session::OpenRecord() {
  if (line_.record.empty() || recording_) return absl::OkStatus();
  const absl::Status status = screen_.Record(line_.record);
  recording_ = status.ok();
  return status;
}

int Session::Follow(const std::string& job_id, bool submitted_now) {
  if (const absl::Status status = OpenRecord(); !status.ok()) return Fail(status);
  const absl::StatusOr<v1::Job> job = FollowJob(&client_, job_id, {}, console_.interrupt, &screen_);
  if (job.ok()) {
    screen_.Finish(*job);
    const int code = ExitCodeOf(job->state());
    return code == kExitOk && screen_.record_failed() ? kExitUsage : code;
  }
  screen_.Leave();
  if (absl::IsCancelled(job.status())) {
    console_.err << job_id << " continues; `fsdpctl watch " << job_id << "` shows it again, `fsdpctl cancel "
                 << job_id << "` ends it\n";
    return kExitInterrupted;
  }
  const int code = Fail(job.status());
  if (submitted_now) console_.err << "the job was submitted: " << job_id << "\n";
  return code;
}

}  // namespace fsdpd
