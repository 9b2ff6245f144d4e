// The paths that a spec names, made whole. Ranks run in directories of their own, so a relative path means
// something on this machine alone: it is relative to the directory of the file that has it, and to the
// working directory for stdin. A coordinator takes whole ones only (checkpoint_dir_path, token_path_absolute
// and others).
//
// What is on this machine alone, and read here, is not among them: model.hf_config, model.plugin.description.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// `file` as the command line has it: "-" is stdin.
std::filesystem::path DirectoryOf(const std::string& file);

// Without `.`; an empty path stays so. A `..` stays too, for the rules to refuse (base/dot_dot.h).
std::string WholePath(const std::string& path, const std::filesystem::path& directory);

// What a shell or a store would make of a relative path (~, s3://) is nothing that a node could open by that
// name, and no path of this machine's either.
bool IsOfShellOrStore(const std::string& path);

struct RelativePath {
  std::string field;  // "checkpoint.dir"
  std::string written;
  std::string whole;
};

// The fields of a spec that name paths, such as "checkpoint.load". Ranks open them on their nodes, so neither
// this machine nor the coordinator knows what is there.
std::vector<std::string> NodePathFields(v1::JobSpec spec);

// Of token files and their masks, of checkpoints and of a plug-in. Returns those that were relative.
std::vector<RelativePath> MakePathsWhole(const std::filesystem::path& directory, v1::JobSpec* spec);

}  // namespace fsdpd
