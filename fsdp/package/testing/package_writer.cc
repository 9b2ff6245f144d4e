#include "fsdp/package/testing/package_writer.h"

#include <absl/strings/escaping.h>
#include <google/protobuf/util/json_util.h>
#include <openssl/sha.h>

#include <fstream>
#include <utility>

#include "base/check.h"
#include "fsdp/checkpoint/format/zip.h"

namespace fsdpd {

void ListFiles(const FileContents& files, v1::PackageManifest* manifest) {
  for (const auto& [name, bytes] : files) {
    v1::PackageFile* file = manifest->add_files();
    file->set_name(name);
    file->set_bytes(static_cast<int64_t>(bytes.size()));
    unsigned char hash[SHA256_DIGEST_LENGTH];
    SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), hash);
    file->set_sha256(absl::BytesToHexString({reinterpret_cast<const char*>(hash), sizeof hash}));
  }
}

std::string JsonOf(const v1::PackageManifest& manifest) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  FSDPD_CHECK(google::protobuf::util::MessageToJsonString(manifest, &json, options).ok());
  return json;
}

std::string ZipOf(const FileContents& members) {
  ZipWriter zip;
  for (const auto& [name, bytes] : members) zip.Add(name, bytes);
  zip.Finish();
  return zip.Take();
}

v1::PackageManifest ManifestOf(v1::Package model) {
  v1::PackageManifest manifest;
  manifest.set_schema(1);
  model.clear_path();
  model.clear_digest();
  for (int g = 0; g < model.graphs_size(); ++g) manifest.add_graphs();
  for (int u = 0; u < model.units_size(); ++u) manifest.add_units();
  *manifest.mutable_model() = std::move(model);
  return manifest;
}

std::string PackageOf(const v1::Package& model, const FileContents& files) {
  v1::PackageManifest manifest = ManifestOf(model);
  ListFiles(files, &manifest);
  FileContents members = files;
  members["manifest.json"] = JsonOf(manifest);
  return ZipOf(members);
}

std::string WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

}  // namespace fsdpd
