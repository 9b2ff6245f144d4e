// Packages for tests of the reader, as archives in memory. The files need not be shared objects.
#pragma once

#include <map>
#include <string>

#include "proto/fsdpd/v1/package.pb.h"

namespace fsdpd {

using FileContents = std::map<std::string, std::string>;

// Lists the files in `manifest.files`.
void ListFiles(const FileContents& files, v1::PackageManifest* manifest);
std::string JsonOf(const v1::PackageManifest& manifest);

// An archive with these members, in the order of their names.
std::string ZipOf(const FileContents& members);

// The manifest of a model without path and digest, with graphs and units of the right number.
v1::PackageManifest ManifestOf(v1::Package model);

// A package of the model in memory, with the files.
std::string PackageOf(const v1::Package& model, const FileContents& files);

// Writes the file and returns its path.
std::string WriteFile(const std::string& path, const std::string& bytes);

}  // namespace fsdpd
