// Conversion of a spec's relative paths to absolute ones. Ranks run in their own directories, so a relative
// path is meaningful only on this machine: relative to the directory of the spec file, or to the working
// directory for stdin. A coordinator accepts only absolute paths (rules checkpoint_dir_path,
// token_path_absolute and others).
//
// model.hf_config and model.plugin.description are excluded: fsdpctl reads these files itself.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// `file`: as on the command line; "-" is stdin.
std::filesystem::path SpecDirectory(const std::string& file);

// Returns the absolute path, with `.` removed. An empty path stays empty. `..` is preserved, and validation
// rejects it (base/dot_dot.h).
std::string AbsolutePath(const std::string& path, const std::filesystem::path& directory);

// Whether the path needs expansion by a shell or access to an object store (~, s3://). Nodes cannot open such
// a path, and it is not relative to a directory of this machine.
bool NeedsExpansion(const std::string& path);

struct RelativePath {
  std::string field;  // "checkpoint.dir"
  std::string written;
  std::string absolute;
};

// The fields of a spec that name paths on the nodes, such as "checkpoint.load". Only the ranks open them, so
// neither fsdpctl nor the coordinator can check them.
std::vector<std::string> NodePathFields(v1::JobSpec spec);

// Converts the paths of token files, their masks, checkpoints, a plug-in and a package. Returns the paths
// that were relative.
std::vector<RelativePath> MakePathsAbsolute(const std::filesystem::path& directory, v1::JobSpec* spec);

}  // namespace fsdpd
