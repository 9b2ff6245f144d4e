#include "client/flags/completion.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>

#include "base/check.h"
#include "client/connect/wait_condition.h"

namespace fsdpd {
namespace {

// Bash treats = and : as word separators, so the part of a candidate up to the last of them is removed.
constexpr char kBash[] = R"(_fsdpctl() {
  local typed="${COMP_LINE:0:COMP_POINT}" word cut="" one
  local -a words
  read -ra words <<< "$typed"
  [[ "$typed" == *[[:space:]] ]] && words+=("")
  word="${words[${#words[@]}-1]}"
  [[ "$word" == *[=:]* ]] && cut="${word%"${word##*[=:]}"}"
  COMPREPLY=()
  while IFS= read -r one; do
    if [[ "$one" == ":files" ]]; then
      compopt -o default 2> /dev/null
      COMPREPLY=()
      return
    fi
    COMPREPLY+=("${one#"$cut"}")
  done < <("${words[0]}" __complete "${words[@]:1}" 2> /dev/null)
}
complete -F _fsdpctl fsdpctl
)";

constexpr char kZsh[] = R"(#compdef fsdpctl
_fsdpctl() {
  local -a offered
  offered=("${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2> /dev/null)}")
  if [[ "${offered[1]}" == ":files" ]]; then
    _files
  else
    compadd -Q -- ${offered:#}
  fi
}
if [[ "${funcstack[1]}" == "_fsdpctl" ]]; then
  _fsdpctl "$@"
else
  compdef _fsdpctl fsdpctl
fi
)";

constexpr char kFish[] = R"(function __fsdpctl_offered
  set -l words (commandline -opc)
  set -l word (commandline -ct)
  set -l offered ($words[1] __complete $words[2..-1] "$word" 2> /dev/null)
  if test "$offered[1]" = ":files"
    __fish_complete_path "$word"
  else
    printf '%s\n' $offered
  end
end
complete -c fsdpctl -f -a '(__fsdpctl_offered)'
)";

// Values of flags with a fixed set of values. For other flags only paths are offered, if the flag takes a
// file.
const std::map<std::string, std::vector<std::string>>& ValuesOf() {
  static const auto* const values = new std::map<std::string, std::vector<std::string>>{
      {"output", {"table", "json", "yaml", "wide", "name", "spec", "jsonpath="}},
      {"state", StateNames()},
      {"role", {"viewer", "submitter", "operator", "admin"}},
      {"to", {"fsdp_dtensor", "hf", "torch_dist"}},
      {"dtype", {"bfloat16", "float16", "float32"}},
      {"device", {"cpu", "cuda"}},
  };
  return *values;
}

std::vector<std::string> Conditions() {
  std::vector<std::string> all = {"ended", "deleted", "step="};
  for (const std::string& state : StateNames()) all.push_back("state=" + state);
  return all;
}

// The flag `word`, if its value is in the next word; otherwise null.
const CLI::Option* FlagWithValue(const std::vector<const CLI::App*>& apps, const std::string& word) {
  for (const CLI::App* app : apps) {
    const CLI::Option* option = app->get_option_no_throw(word);
    if (option != nullptr && option->get_positional() == false && option->get_expected_min() > 0)
      return option;
  }
  return nullptr;
}

// The subcommand `name`, or null.
const CLI::App* CommandOf(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

class CandidateFinder {
 public:
  CandidateFinder(const CLI::App& app, const NameSource& names) : names_(names), apps_{&app} {}

  std::vector<std::string> Find(const std::vector<std::string>& words) {
    const std::string word = words.empty() ? "" : words.back();
    const CLI::Option* flag = nullptr;  // The flag whose value is the next word.
    for (size_t i = 0; i + 1 < words.size(); ++i) {
      if (flag != nullptr) {
        flag = nullptr;
      } else if (absl::StartsWith(words[i], "-")) {
        flag = FlagWithValue(apps_, words[i]);
      } else if (const CLI::App* next = CommandOf(*apps_.back(), words[i])) {
        apps_.push_back(next);
      } else {
        positionals_.push_back(words[i]);
      }
    }
    if (IsOfPlugin()) return {kCompletePaths};
    const size_t equals = word.find('=');
    if (flag != nullptr) return Beginning(ValuesOfFlag(*flag), word);
    if (absl::StartsWith(word, "--") && equals != std::string::npos) {
      flag = FlagWithValue(apps_, word.substr(0, equals));
      std::vector<std::string> values = flag == nullptr ? std::vector<std::string>() : ValuesOfFlag(*flag);
      if (values == std::vector<std::string>{kCompletePaths}) return values;
      for (std::string& value : values) value = absl::StrCat(word.substr(0, equals + 1), value);
      return Beginning(values, word);
    }
    return Beginning(absl::StartsWith(word, "-") ? Flags() : Arguments(), word);
  }

 private:
  static std::vector<std::string> Beginning(const std::vector<std::string>& all, const std::string& word) {
    if (all == std::vector<std::string>{kCompletePaths}) return all;
    std::vector<std::string> some;
    for (const std::string& each : all) {
      if (absl::StartsWith(each, word)) some.push_back(each);
    }
    return some;
  }

  std::vector<std::string> ValuesOfFlag(const CLI::Option& flag) const {
    const std::vector<std::string> names = flag.get_lnames();
    const std::string name = names.empty() ? "" : names.front();
    if (name == "for") return Conditions();
    if (name == "context") return names_(NameKind::kContexts, Command());
    // The type name decides, because flags share names: `submit --after` takes jobs, `events --after` a
    // number.
    const std::string type = flag.get_type_name();
    if (absl::StartsWith(type, "JOB")) return names_(NameKind::kJobs, Command());
    if (type == "NODE") return names_(NameKind::kNodes, Command());
    if (const auto known = ValuesOf().find(name); known != ValuesOf().end()) return known->second;
    const bool is_path = absl::StrContains(type, "FILE") || absl::StrContains(type, "PATH") || name == "out";
    return is_path ? std::vector<std::string>{kCompletePaths} : std::vector<std::string>();
  }

  std::vector<std::string> Flags() const {
    std::vector<std::string> flags;
    for (const CLI::App* app : apps_) {
      for (const CLI::Option* option : app->get_options()) {
        for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
      }
    }
    return flags;
  }

  // The arguments of a plugin are unknown, and usually paths.
  bool IsOfPlugin() const {
    if (apps_.size() > 1 || positionals_.empty()) return false;
    const std::vector<std::string> plugins = names_(NameKind::kPlugins, "");
    return std::find(plugins.begin(), plugins.end(), positionals_.front()) != plugins.end();
  }

  // Subcommands if there are any, otherwise values of the positional argument at this position.
  std::vector<std::string> Arguments() const {
    const std::vector<const CLI::App*> commands =
        apps_.back()->get_subcommands([](const CLI::App*) { return true; });
    if (!commands.empty()) {
      std::vector<std::string> names;
      for (const CLI::App* command : commands) names.push_back(command->get_name());
      if (apps_.size() == 1) {
        for (std::string& each : names_(NameKind::kPlugins, "")) names.push_back(std::move(each));
      }
      return names;
    }
    std::vector<std::string> all;
    size_t place = 0;
    for (const CLI::Option* option : apps_.back()->get_options()) {
      if (!option->get_positional()) continue;
      const bool here = place++ == positionals_.size() || option->get_expected_max() > 1;
      if (!here) continue;
      for (std::string& each : OfPositional(option->get_name(/*positional=*/true)))
        all.push_back(std::move(each));
      break;
    }
    return all;
  }

  std::vector<std::string> OfPositional(const std::string& name) const {
    const std::string command = Command();
    if (name == "JOB") {
      std::vector<std::string> jobs = names_(NameKind::kJobs, command);
      if (command == "describe") jobs.push_back("node");
      return jobs;
    }
    const bool of_node = command != "describe" || (!positionals_.empty() && positionals_.front() == "node");
    if (name == "NODE") return of_node ? names_(NameKind::kNodes, command) : std::vector<std::string>();
    if (name == "SHELL") return {"bash", "zsh", "fish"};
    if (name == "NAME" && apps_.size() > 2 && apps_[1]->get_name() == "context")
      return names_(NameKind::kContexts, command);
    const bool is_path =
        name == "DIR" || name == "SOURCE" || name == "TARGET" || name == "FIRST" || name == "SECOND";
    return is_path ? std::vector<std::string>{kCompletePaths} : std::vector<std::string>();
  }

  std::string Command() const { return apps_.size() > 1 ? apps_[1]->get_name() : ""; }

  const NameSource& names_;
  std::vector<const CLI::App*> apps_;  // The program, its command, and the subcommand.
  std::vector<std::string> positionals_;
};

}  // namespace

std::vector<std::string> Candidates(const CLI::App& app, const std::vector<std::string>& words,
                                    const NameSource& names) {
  return CandidateFinder(app, names).Find(words);
}

std::string CompletionScript(const std::string& shell) {
  if (shell == "bash") return kBash;
  if (shell == "zsh") return kZsh;
  FSDPD_CHECK(shell == "fish");
  return kFish;
}

}  // namespace fsdpd
