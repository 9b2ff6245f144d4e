#include "client/spec_file.h"

#include <absl/strings/str_cat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "client/hf_config.h"

namespace fsdpd {
namespace {

// One byte over the limit is read, so that the parser can say that the text is too large.
std::string ReadBounded(std::istream& stream) {
  std::string text(kMaxJobSpecBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(stream.gcount()));
  return text;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    return absl::NotFoundError(absl::StrCat(path, ": is a folder"));
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  std::string text = ReadBounded(stream);
  if (stream.bad()) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  return text;
}

std::string Absolute(const std::string& path, const std::filesystem::path& folder) {
  if (path.empty()) return path;
  return std::filesystem::absolute(folder / path).lexically_normal().string();
}

void InlineHfConfig(const std::filesystem::path& folder, SpecText* spec) {
  if (!spec->spec.model().has_hf_config()) return;
  const std::string path = Absolute(spec->spec.model().hf_config(), folder);
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) {
    const Violation cannot_read{"hf_no_config",
                                FaultLevel::kError,
                                "model.hf_config",
                                std::string(text.status().message()),
                                "give the path of a config.json on this machine",
                                "",
                                ""};
    spec->faults.push_back(Locate(cannot_read, spec->places));
    return;
  }
  v1::Model model;
  const SpecFaults faults = ReadHfConfig(*text, path, &model);
  spec->faults.insert(spec->faults.end(), faults.begin(), faults.end());
  if (!faults.empty()) return;
  // What is said about the sizes later is said where they came from.
  spec->places[model.has_gpt2() ? "model.gpt2" : "model.llama"] = {path, 1, 1};
  *spec->spec.mutable_model() = std::move(model);
}

}  // namespace

absl::StatusOr<std::string> ReadText(const std::string& path, std::istream& input) {
  if (path == "-") return ReadBounded(input);
  return ReadFile(path);
}

absl::StatusOr<SpecText> LoadSpec(const std::string& path, const std::vector<std::string>& sets,
                                  std::istream& input) {
  const bool from_stdin = path == "-";
  FSDPD_ASSIGN_OR_RETURN(const std::string text, ReadText(path, input));
  SpecText spec = ParseSpec(text, from_stdin ? "<stdin>" : path, sets);
  if (!spec.faults.empty()) return spec;
  std::error_code ignored;
  const std::filesystem::path folder = from_stdin ? std::filesystem::current_path(ignored)
                                                  : std::filesystem::absolute(path, ignored).parent_path();
  InlineHfConfig(folder, &spec);
  if (!spec.spec.has_data()) return spec;
  v1::Data* data = spec.spec.mutable_data();
  for (auto* files : {data->mutable_tokens(), data->mutable_validation()}) {
    for (v1::TokenFile& file : *files) file.set_path(Absolute(file.path(), folder));
  }
  return spec;
}

}  // namespace fsdpd
