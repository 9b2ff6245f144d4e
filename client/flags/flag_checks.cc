#include "client/flags/flag_checks.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include "base/process/cli_app.h"
#include "client/text/log_choice.h"

namespace fsdpd {
namespace {

constexpr int kMostSeconds = 24 * 60 * 60;
constexpr int kMostPatience = 365 * kMostSeconds;

}  // namespace

CLI::App* AddCommand(CLI::App* app, const std::string& name, const std::string& about,
                     const std::string& examples) {
  CLI::App* command = AddSubcommand(app, name, about);
  command->fallthrough();
  command->footer("\nExamples:\n" + examples);
  return command;
}

CLI::Validator NotEmpty() {
  return CLI::Validator(
      [](std::string& text) -> std::string { return text.empty() ? "is empty; add a value" : ""; }, "");
}

CLI::Validator WholeNumber(int least, int most) {
  return CLI::Validator(
      [least, most](std::string& text) -> std::string {
        int value = 0;
        if (absl::SimpleAtoi(text, &value) && value >= least && value <= most) return "";
        return absl::StrCat("'", text, "' is not an integer from ", least, " to ", most);
      },
      "");
}

std::string CheckSeconds(std::string& text) {
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds) && seconds > 0 && seconds <= kMostSeconds) return "";
  return absl::StrCat("'", text, "' is not a number of seconds above 0 and at most ", kMostSeconds,
                      " (1 day)");
}

std::string CheckWaitSeconds(std::string& text) {
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds) && seconds > 0 && seconds <= kMostPatience) return "";
  return absl::StrCat("'", text, "' is not a number of seconds above 0 and at most ", kMostPatience,
                      " (1 year)");
}

std::string CheckSince(std::string& text) {
  return std::string(ParseSince(text, absl::UnixEpoch()).status().message());
}

std::set<std::string> AccessFlags(const std::vector<std::string>& words) {
  std::set<std::string> flags;
  for (const std::string& word : words) {
    if (word == "--") break;
    const std::string flag = word.substr(0, word.find('='));
    if (flag == "--server" || flag == "--context" || flag == "--coordinator-ca" || flag == "--token-file" ||
        flag == "--timeout")
      flags.insert(flag);
  }
  return flags;
}

}  // namespace fsdpd
