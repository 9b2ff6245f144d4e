// A package: the file that `fsdpctl model export` writes (proto/fsdpd/v1/package.proto). It is a zip archive
// of stored members: manifest.json, and the files that the manifest lists with their SHA-256. The manifest's
// own SHA-256 is the digest, so a digest fixes all bytes that are used.
//
// The file is untrusted input: sizes are bounded, and names cannot leave the directory. Whether the
// graphs are valid is up to the rules (model.package) and the engine.
//
// Thread-safe. Errors name the file and the member: NOT_FOUND or UNAVAILABLE if a file cannot be read or
// written (IsDiskFull() without space), DATA_LOSS for an archive that is damaged or not a package,
// FAILED_PRECONDITION for a newer format, another package than expected, or a directory without execution.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <string>

#include "proto/fsdpd/v1/package.pb.h"

namespace fsdpd {

// Reads the manifest of the package file. Its `model` is complete, as in a job's spec: with path and digest.
// Other members are not read.
absl::StatusOr<v1::PackageManifest> ReadPackage(const std::string& path);

// Writes all files of the package below the directory, which is created, and verifies their SHA-256 while
// writing. The ranks of a node share a directory: the first one unpacks, and the others wait for it with a
// file lock, which ends with the process. An error leaves no files. Returns the manifest, as ReadPackage().
absl::StatusOr<v1::PackageManifest> UnpackPackage(const std::string& path, absl::string_view digest,
                                                  const std::string& directory);

}  // namespace fsdpd
