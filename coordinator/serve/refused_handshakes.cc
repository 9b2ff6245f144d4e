#include "coordinator/serve/refused_handshakes.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>
#include <absl/time/clock.h>
#include <grpc/support/log.h>

#include <cstdlib>

#include "base/log.h"
#include "base/repeats.h"

namespace fsdpd {
namespace {

void Take(gpr_log_func_args* said) {
  static auto* const repeats = new Repeats;
  const std::string why = HandshakeError(said->message);
  if (why.empty()) return;
  const std::optional<int64_t> others = repeats->Report(why, absl::Now());
  if (!others.has_value()) return;
  LogWarning("TLS handshake failed error=%s%s", why,
             *others > 0 ? absl::StrCat(" (and ", *others, " more since the last report)") : "");
}

}  // namespace

void LogFailedHandshakes() {
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function(Take);
}

std::string HandshakeError(absl::string_view line) {
  if (!absl::ConsumePrefix(&line, "Handshake failed with fatal error ")) return "";
  if (absl::StrContains(line, "certificate verify failed"))
    return "client certificate is not signed by a CA in --tls-client-ca, or is not valid now";
  if (absl::StrContains(line, "wrong version number") || absl::StrContains(line, "http request"))
    return "client does not use TLS, like agents with --insecure and fsdpctl without --coordinator-ca";
  if (absl::StrContains(line, "alert unknown ca") || absl::StrContains(line, "alert bad certificate"))
    return "client does not trust the CA of --tls-cert";
  return std::string(line);
}

}  // namespace fsdpd
