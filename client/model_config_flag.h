// Which model a checkpoint is, as --config FILE or --spec FILE of `fsdpctl ckpt` say it. What is wrong with
// the file is told, and the exit code returned; kExitOk where there is a model.
#pragma once

#include <string>

#include "client/console.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// `text`: of the file.
int ReadConfigModel(const std::string& path, Console* console, v1::Model* model, std::string* text);

// A spec whose model is sound; the rest of it matters to nobody here.
int ReadSpecModel(const std::string& path, Console* console, v1::JobSpec* job);

// As the rules say it.
bool IsSoundModel(const v1::Model& model);

// Wrong use, told in these words.
int RefuseUse(absl::string_view why, Console* console);

}  // namespace fsdpd
