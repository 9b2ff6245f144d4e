#include "agent/ranks/internal_errors.h"

#include <absl/strings/str_cat.h>

#include <exception>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/process/uncaught.h"

namespace fsdpd {

InternalErrors::InternalErrors(std::function<void()> count) : count_(std::move(count)) {}

absl::Status InternalErrors::Catch(const RankId& id, absl::FunctionRef<void()> step) const {
  std::string text;
  try {
    step();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    text = UncaughtText(error);
  }
  LogError("internal error: %s %s", text, id.rank < 0 ? ToString(id.of) : ToString(id));
  if (count_ != nullptr) count_();
  return absl::InternalError(absl::StrCat("internal error of the agent: ", text));
}

}  // namespace fsdpd
