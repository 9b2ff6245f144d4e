#include "client/commands/contexts.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "base/json_quote.h"
#include "base/net/address.h"
#include "base/spec_text/located_violation.h"
#include "base/spec_text/yaml_tree.h"
#include "base/text.h"
#include "client/text/output_file.h"

namespace fsdpd {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::Status ErrorAt(const Place& place, const std::string& message) {
  return absl::InvalidArgumentError(
      absl::StrCat(place.file, ":", place.line, ":", place.column, ": ", Escaped(message)));
}

absl::Status UnknownKey(const TextNode& node, const std::vector<std::string>& known) {
  const std::string nearest = Nearest(node.key, known);
  return ErrorAt(node.key_place,
                 absl::StrCat("unknown field ", node.key,
                              nearest.empty() ? absl::StrCat("; use one of ", absl::StrJoin(known, ", "))
                                              : absl::StrCat("; did you mean ", nearest, "?")));
}

absl::Status TakeText(const TextNode& node, std::string* text) {
  if (node.kind != TextNode::Kind::kScalar || node.text.empty())
    return ErrorAt(node.place, absl::StrCat(node.key, " must be a string"));
  *text = node.text;
  return absl::OkStatus();
}

// Resolves `path` relative to the directory of `file`.
std::string PathIn(const std::string& file, const std::string& path) {
  if (path.empty()) return path;
  return (std::filesystem::path(file).parent_path() / path).lexically_normal().string();
}

absl::StatusOr<Context> ReadContext(const std::string& file, const TextNode& node) {
  if (node.kind != TextNode::Kind::kMap)
    return ErrorAt(node.key_place,
                   absl::StrCat(node.key, " must be a map with server, coordinator_ca and token_file"));
  Context context;
  context.name = node.key;
  for (const TextNode& field : node.children) {
    std::string* const to = field.key == "server"           ? &context.server
                            : field.key == "coordinator_ca" ? &context.coordinator_ca
                            : field.key == "token_file"     ? &context.token_file
                                                            : nullptr;
    if (to == nullptr) return UnknownKey(field, {"server", "coordinator_ca", "token_file"});
    FSDPD_RETURN_IF_ERROR(TakeText(field, to));
  }
  if (context.server.empty()) return ErrorAt(node.key_place, absl::StrCat(node.key, " has no server"));
  if (const auto addresses = ParseAddresses(context.server); !addresses.ok())
    return ErrorAt(node.Find("server")->place, std::string(addresses.status().message()));
  context.coordinator_ca = PathIn(file, context.coordinator_ca);
  context.token_file = PathIn(file, context.token_file);
  return context;
}

absl::StatusOr<std::string> TextOf(const std::string& path) {
  std::error_code error;
  // A stream reads nothing from a directory, and reports no error.
  if (std::filesystem::is_directory(path, error))
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": ", std::strerror(EISDIR)));
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  if (in.is_open() && !in.bad()) return text.str();
  return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
}

bool IsCurrentLine(const std::string& line) { return absl::StartsWith(line, "current:"); }

// The first line of the document, after "---" if there is one.
std::vector<std::string>::iterator FirstLine(std::vector<std::string>* lines) {
  const auto first = std::find_if(lines->begin(), lines->end(), [](const std::string& line) {
    return !line.empty() && line[0] != '#' && line[0] != '%' && !absl::StripAsciiWhitespace(line).empty();
  });
  return first != lines->end() && absl::StripTrailingAsciiWhitespace(*first) == "---" ? first + 1
                                                                                      : lines->begin();
}

std::string WithCurrent(const std::string& text, const std::string& name) {
  const bool is_plain = std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  });
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  const std::string line = absl::StrCat("current: ", is_plain ? name : JsonQuoted(name));
  const auto at = std::find_if(lines.begin(), lines.end(), IsCurrentLine);
  if (at == lines.end()) {
    lines.insert(FirstLine(&lines), line);
  } else {
    *at = line;
  }
  return absl::StrJoin(lines, "\n");
}

// Replaces the file atomically (write to a temporary file, then rename). A symbolic link is preserved and its
// target replaced.
absl::Status Replace(const std::string& path, const std::string& text) {
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(path, error);
  if (error) return absl::InvalidArgumentError(absl::StrCat("cannot write ", path, ": ", error.message()));
  std::string written = absl::StrCat(file.string(), ".XXXXXX");  // Unique, for concurrent writers.
  const int fd = mkstemp(written.data());
  if (fd < 0)
    return absl::InvalidArgumentError(
        absl::StrCat("cannot create a file next to ", file.string(), ": ", std::strerror(errno)));
  close(fd);
  const absl::Status output = WriteOutput("context use", written, text);
  if (output.ok()) {
    std::filesystem::permissions(written, std::filesystem::status(file, error).permissions(), error);
    std::filesystem::rename(written, file, error);
  }
  if (output.ok() && !error) return absl::OkStatus();
  std::error_code unused;
  std::filesystem::remove(written, unused);
  if (!output.ok()) return output;
  return absl::InvalidArgumentError(absl::StrCat("cannot write ", file.string(), ": ", error.message()));
}

// `current` may name a context that no longer exists. ApplyContext() reports that when it is used.
absl::StatusOr<Contexts> Parsed(const std::string& path, const std::string& text) {
  Contexts contexts;
  contexts.path = path;
  TextNode root;
  LocatedViolations violations = ParseYaml(text, path, &root);
  if (violations.empty()) violations = DuplicateKeys(root);
  if (!violations.empty()) {
    violations.front().violation.rule.clear();  // The rules are those of specs.
    return absl::InvalidArgumentError(Render(violations.front()));
  }
  if (root.kind == TextNode::Kind::kNull) return contexts;
  if (root.kind != TextNode::Kind::kMap)
    return ErrorAt(root.place, "the file must be a map with current and contexts");
  for (const TextNode& field : root.children) {
    if (field.key == "current") {
      FSDPD_RETURN_IF_ERROR(TakeText(field, &contexts.current));
    } else if (field.key == "contexts" && field.kind == TextNode::Kind::kMap) {
      for (const TextNode& one : field.children) {
        FSDPD_ASSIGN_OR_RETURN(Context context, ReadContext(path, one));
        contexts.all.push_back(std::move(context));
      }
    } else if (field.key == "contexts") {
      return ErrorAt(field.key_place, "contexts must be a map from names to contexts");
    } else {
      return UnknownKey(field, {"current", "contexts"});
    }
  }
  return contexts;
}

}  // namespace

absl::StatusOr<Context> Contexts::Find(const std::string& name) const {
  std::vector<std::string> names;
  for (const Context& context : all) {
    if (context.name == name) return context;
    names.push_back(context.name);
  }
  const std::string nearest = Nearest(name, names);
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown context '", Escaped(name), "' in ", path,
      nearest.empty() ? (names.empty() ? "" : absl::StrCat("; use one of ", absl::StrJoin(names, ", ")))
                      : absl::StrCat("; did you mean ", nearest, "?")));
}

std::string ContextsPath() {
  if (const std::string named = Variable("FSDPD_CONFIG"); !named.empty()) return named;
  if (const std::string config = Variable("XDG_CONFIG_HOME"); !config.empty())
    return config + "/fsdpd/contexts.yaml";
  const std::string home = Variable("HOME");
  return home.empty() ? "" : home + "/.config/fsdpd/contexts.yaml";
}

absl::StatusOr<Contexts> ReadContexts(const std::string& path) {
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return Contexts{path, "", {}};
  FSDPD_ASSIGN_OR_RETURN(const std::string text, TextOf(path));
  return Parsed(path, text);
}

absl::Status UseContext(const std::string& path, const std::string& name) {
  FSDPD_ASSIGN_OR_RETURN(const std::string text, TextOf(path));
  const std::string changed = WithCurrent(text, name);
  // Inserting a line breaks flow-style files and files with several documents; reject instead of writing.
  const absl::StatusOr<Contexts> read = Parsed(path, changed);
  if (!read.ok() || read->current != name || !read->Find(name).ok())
    return absl::InvalidArgumentError(absl::StrCat("cannot set current in ", path,
                                                   ", because of its layout; add 'current: ", Escaped(name),
                                                   "' yourself"));
  return Replace(path, changed);
}

absl::Status ApplyContext(CommandLine* line) {
  const auto is_flag = [&](const char* name) { return line->flags.count(name) > 0; };
  const bool named = is_flag("--context");
  if (named && is_flag("--server"))
    return absl::InvalidArgumentError(
        "--server is not supported with --context; remove one of them [INVALID_FLAG]");
  if (is_flag("--server")) line->context.clear();
  if (!named && !line->context.empty() && !line->server.empty())
    return absl::InvalidArgumentError(
        "FSDPD_SERVER is not supported with FSDPD_CONTEXT; unset one of them, or use --server or --context "
        "[INVALID_FLAG]");
  if (named && !line->server.empty()) {
    line->server.clear();
    if (!is_flag("--coordinator-ca")) line->coordinator_ca.clear();
    if (!is_flag("--token-file")) line->token_file.clear();
    line->takes_token_variable = false;
  }
  if (line->server.empty()) {
    FSDPD_ASSIGN_OR_RETURN(const Contexts contexts, ReadContexts(ContextsPath()));
    const std::string& name = line->context.empty() ? contexts.current : line->context;
    if (!name.empty()) {
      const absl::StatusOr<Context> found = contexts.Find(name);
      if (!found.ok() && line->context.empty())
        return absl::InvalidArgumentError(absl::StrCat("current context: ", found.status().message(),
                                                       "; select another with `fsdpctl context use NAME`"));
      FSDPD_ASSIGN_OR_RETURN(const Context context, found);
      line->server = context.server;
      // A context that was named by a flag takes precedence over variables.
      const bool has_ca = named ? is_flag("--coordinator-ca") : !line->coordinator_ca.empty();
      if (!has_ca && !context.coordinator_ca.empty()) line->coordinator_ca = context.coordinator_ca;
      const bool has_token = named ? is_flag("--token-file")
                                   : !line->token_file.empty() || std::getenv("FSDPD_TOKEN") != nullptr;
      if (!has_token && !context.token_file.empty()) line->token_file = context.token_file;
    }
  }
  if (line->server.empty()) line->server = kDefaultServer;
  return absl::OkStatus();
}

}  // namespace fsdpd
