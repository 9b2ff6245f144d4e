// Model of a checkpoint, from --config FILE or --spec FILE of `fsdpctl ckpt`. The Read functions report the
// errors of the file and return an exit code: kExitOk if the model was read.
#pragma once

#include <string>

#include "client/text/console.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// Stores the text of the file in `text`.
int ReadConfigModel(const std::string& path, Console* console, v1::Model* model, std::string* text);

// Reads a spec and validates only its model. `ckpt` uses no other field.
int ReadSpecModel(const std::string& path, Console* console, v1::JobSpec* job);

// Whether the model passes the validation rules.
bool IsValidModel(const v1::Model& model);

// Reports a usage error. Returns the exit code.
int ReportUsageError(absl::string_view why, Console* console);

}  // namespace fsdpd
