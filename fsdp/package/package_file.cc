#include "fsdp/package/package_file.h"

#include <absl/strings/ascii.h>
#include <absl/strings/escaping.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <fcntl.h>
#include <google/protobuf/util/json_util.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/errno_status.h"
#include "base/log.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "fsdp/checkpoint/format/durable_file.h"
#include "fsdp/checkpoint/format/part_directory.h"
#include "fsdp/checkpoint/format/zip.h"

namespace fsdpd {
namespace {

constexpr char kManifest[] = "manifest.json";
constexpr char kUnpacked[] = ".unpacked";  // Created last. Not a valid name of a package's file.
constexpr int64_t kMaxManifestBytes = 16 << 20;
constexpr int64_t kSchema = 1;
constexpr size_t kMaxNameBytes = 240;
constexpr int64_t kPieceBytes = 4 << 20;  // Size of one read, hash update and write.
constexpr size_t kMaxJsonErrorBytes = 300;

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    FSDPD_CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }
  void Add(absl::string_view bytes) {
    FSDPD_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
  }
  std::string Hex() {
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    FSDPD_CHECK(EVP_DigestFinal_ex(context_.get(), hash, &size) == 1);
    return absl::BytesToHexString({reinterpret_cast<const char*>(hash), size});
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

// An open archive, with its members by name.
struct Archive {
  std::string path;
  UniqueFd fd;
  std::map<std::string, ZipMember> members;

  ReadAt Reader() const {
    return [this](int64_t begin, int64_t size, void* out) { return Read(begin, size, out); };
  }
  absl::Status Read(int64_t begin, int64_t size, void* out) const {
    for (int64_t done = 0; done < size;) {
      const ssize_t got = pread(fd.get(), static_cast<char*>(out) + done, size - done, begin + done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return ErrnoStatus(absl::StrCat(path, ": read"));
      if (got == 0)
        return absl::DataLossError(absl::StrCat(path, ": file is shorter than when it was opened"));
      done += got;
    }
    return absl::OkStatus();
  }
};

absl::Status NotPackage(const std::string& path, absl::string_view why) {
  return absl::DataLossError(
      absl::StrCat(path, ": is not a package of fsdpctl model export, or is incomplete: ", why));
}

absl::StatusOr<std::unique_ptr<Archive>> OpenArchive(const std::string& path) {
  auto archive = std::make_unique<Archive>();
  archive->path = path;
  archive->fd = UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!archive->fd.valid()) return ErrnoStatus(path);
  struct stat facts = {};
  if (fstat(archive->fd.get(), &facts) != 0) return ErrnoStatus(path);
  if (!S_ISREG(facts.st_mode)) return NotPackage(path, "it is not a regular file");
  const absl::StatusOr<std::vector<ZipMember>> members = ReadZip(facts.st_size, archive->Reader());
  if (absl::IsDataLoss(members.status())) return NotPackage(path, members.status().message());
  FSDPD_RETURN_IF_ERROR(members.status());
  for (const ZipMember& member : *members) {
    if (!archive->members.emplace(member.name, member).second)
      return NotPackage(path, absl::StrCat("member ", member.name, " occurs twice"));
  }
  return archive;
}

bool IsFileName(const std::string& name) {
  const bool is_plain = std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-' || c == '/';
  });
  if (!is_plain || name.size() > kMaxNameBytes || name == kManifest) return false;
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '/');
  return std::none_of(parts.begin(), parts.end(),
                      [](absl::string_view part) { return part.empty() || absl::StartsWith(part, "."); });
}

// Names of files that graphs, units and buffers use.
std::vector<std::string> UsedFiles(const v1::PackageManifest& manifest) {
  std::vector<std::string> used;
  const auto add = [&used](const std::string& name) {
    if (!name.empty()) used.push_back(name);
  };
  for (const v1::PackageGraph& graph : manifest.graphs()) {
    add(graph.evaluation().library());
    for (const v1::PackageGraph::Variant& variant : graph.variants()) {
      add(variant.forward().library());
      add(variant.backward().library());
    }
  }
  for (const v1::PackageUnit& unit : manifest.units()) {
    for (const v1::PackageUnit::InitialValue& initial : unit.initial_values()) {
      if (initial.has_file()) used.push_back(initial.file());
    }
  }
  for (const v1::PackageBuffer& buffer : manifest.buffers()) used.push_back(buffer.file());
  return used;
}

// `where`: the archive, or the file of the manifest.
absl::Status CheckManifest(const v1::PackageManifest& manifest, const std::string& where) {
  const auto bad = [&](absl::string_view why) { return NotPackage(where, absl::StrCat("manifest: ", why)); };
  std::set<std::string> names;
  for (const v1::PackageFile& file : manifest.files()) {
    if (!IsFileName(file.name()))
      return bad(absl::StrCat("invalid file name '", CutText(file.name(), 80), "'"));
    if (!names.insert(file.name()).second) return bad(absl::StrCat(file.name(), " is listed twice"));
  }
  for (const std::string& file : UsedFiles(manifest)) {
    if (names.count(file) == 0) return bad(absl::StrCat("'", CutText(file, 80), "' is not one of its files"));
  }
  if (manifest.graphs_size() != manifest.model().graphs_size() ||
      manifest.units_size() != manifest.model().units_size())
    return bad("graphs or units are not those of its model");
  if (!manifest.model().path().empty() || !manifest.model().digest().empty())
    return bad("model has a path or a digest");
  return absl::OkStatus();
}

absl::StatusOr<v1::PackageManifest> ParseManifest(const std::string& json, const std::string& where) {
  v1::PackageManifest manifest;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // A newer schema has fields that this build does not know.
  auto parsed = google::protobuf::util::JsonStringToMessage(json, &manifest, options);
  const int64_t schema = manifest.schema();
  if (parsed.ok() && schema > kSchema)
    return absl::FailedPreconditionError(
        absl::StrCat(where, ": has a newer format (got schema ", schema, ", want ", kSchema,
                     "); update fsdpd, or export the package with an older fsdpctl"));
  if (parsed.ok() && schema != kSchema)
    return NotPackage(where, absl::StrCat("manifest: unknown schema ", schema));
  manifest.Clear();
  options.ignore_unknown_fields = false;
  if (parsed.ok()) parsed = google::protobuf::util::JsonStringToMessage(json, &manifest, options);
  if (!parsed.ok()) {
    const std::string why(parsed.message().data(), parsed.message().size());
    return NotPackage(where, absl::StrCat("manifest: ", CutText(why, kMaxJsonErrorBytes)));
  }
  FSDPD_RETURN_IF_ERROR(CheckManifest(manifest, where));
  manifest.mutable_model()->set_path(where);
  Sha256 hash;
  hash.Add(json);
  manifest.mutable_model()->set_digest(hash.Hex());
  return manifest;
}

absl::StatusOr<v1::PackageManifest> ManifestOf(const Archive& archive) {
  const auto found = archive.members.find(kManifest);
  if (found == archive.members.end()) return NotPackage(archive.path, "it has no manifest.json");
  if (found->second.size > kMaxManifestBytes)
    return NotPackage(archive.path, absl::StrCat("manifest.json is too large (got ", found->second.size,
                                                 " bytes, want at most ", kMaxManifestBytes, ")"));
  const absl::StatusOr<std::string> text = ReadZipMember(found->second, archive.Reader(), kMaxManifestBytes);
  if (absl::IsDataLoss(text.status())) return NotPackage(archive.path, text.status().message());
  FSDPD_RETURN_IF_ERROR(text.status());
  return ParseManifest(*text, archive.path);
}

// Opens `path`, and creates `directory` before.
absl::StatusOr<UniqueFd> OpenIn(const std::string& directory, const std::string& path, int flags) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return ErrnoStatus(absl::StrCat(path, ": create directory"), error.value());
  UniqueFd fd(open(path.c_str(), flags | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoStatus(absl::StrCat(path, ": create"));
  return fd;
}

// A rank that died while it unpacked may have left the file.
absl::StatusOr<UniqueFd> CreateFile(const std::string& path) {
  return OpenIn(std::filesystem::path(path).parent_path(), path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
}

// Copies a member to `path`. `piece`: memory to copy with.
absl::Status Copy(const Archive& archive, const ZipMember& member, const v1::PackageFile& want,
                  const std::string& path, std::string* piece) {
  FSDPD_ASSIGN_OR_RETURN(UniqueFd out, CreateFile(path));
  Sha256 hash;
  for (int64_t done = 0; done < member.size;) {
    piece->resize(static_cast<size_t>(std::min(kPieceBytes, member.size - done)));
    FSDPD_RETURN_IF_ERROR(
        archive.Read(member.begin + done, static_cast<int64_t>(piece->size()), piece->data()));
    hash.Add(*piece);
    FSDPD_RETURN_IF_ERROR(WriteAt(out.get(), path, done, {{piece->data(), piece->size()}}));
    done += static_cast<int64_t>(piece->size());
  }
  // Quotas and network file systems report full disks here.
  if (close(out.Release()) != 0) return ErrnoStatus(absl::StrCat(path, ": close"));
  if (hash.Hex() == want.sha256()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(archive.path, ": SHA-256 of ", want.name(),
                                          " differs from the manifest; copy the package to this node again"));
}

// The lock ends with the descriptor.
absl::StatusOr<UniqueFd> LockDirectory(const std::string& directory) {
  FSDPD_ASSIGN_OR_RETURN(UniqueFd fd, OpenIn(directory, directory, O_RDONLY | O_DIRECTORY));
  while (flock(fd.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return ErrnoStatus(absl::StrCat(directory, ": lock"));
  }
  return fd;
}

// Before anything is written: the archive has exactly the files of the manifest, with their sizes.
absl::Status CheckMembers(const Archive& archive, const v1::PackageManifest& manifest) {
  std::set<std::string> listed = {kManifest};
  for (const v1::PackageFile& file : manifest.files()) {
    const auto found = archive.members.find(file.name());
    if (found == archive.members.end())
      return NotPackage(archive.path, absl::StrCat(file.name(), " is missing"));
    if (found->second.size != file.bytes())
      return NotPackage(archive.path,
                        absl::StrCat(file.name(), " has another size than in the manifest (got ",
                                     found->second.size, ", want ", file.bytes(), ")"));
    listed.insert(file.name());
  }
  for (const auto& [name, member] : archive.members) {
    if (listed.count(name) == 0)
      return NotPackage(archive.path, absl::StrCat("the manifest does not list ", CutText(name, 80)));
  }
  return absl::OkStatus();
}

// Before gigabytes are written: there is space, and code can be loaded from the directory.
absl::Status CheckDisk(const std::string& directory, const v1::PackageManifest& manifest) {
  struct statvfs disk = {};
  if (statvfs(directory.c_str(), &disk) != 0) return ErrnoStatus(absl::StrCat("statvfs ", directory));
  if ((disk.f_flag & ST_NOEXEC) != 0)
    return absl::FailedPreconditionError(
        absl::StrCat(directory,
                     ": is on a file system that is mounted with noexec, and cannot contain the "
                     "package's code; start the agent with another --work-dir"));
  int64_t bytes = 0;  // At most the size of the archive: CheckMembers().
  for (const v1::PackageFile& file : manifest.files()) bytes += file.bytes();
  LogInfo("unpacking package path=%s bytes=%d directory=%s", manifest.model().path(), bytes, directory);
  return CheckFreeSpace(absl::StrCat(directory, "/", kUnpacked), bytes);
}

absl::Status Unpack(const Archive& archive, const v1::PackageManifest& manifest,
                    const std::string& directory) {
  const std::string done = absl::StrCat(directory, "/", kUnpacked);
  if (access(done.c_str(), F_OK) == 0) return absl::OkStatus();
  FSDPD_RETURN_IF_ERROR(CheckDisk(directory, manifest));
  std::string piece;
  for (const v1::PackageFile& file : manifest.files())
    FSDPD_RETURN_IF_ERROR(Copy(archive, archive.members.at(file.name()), file,
                               absl::StrCat(directory, "/", file.name()), &piece));
  return CreateFile(done).status();
}

}  // namespace

absl::StatusOr<v1::PackageManifest> ReadPackage(const std::string& path) {
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<Archive> archive, OpenArchive(path));
  return ManifestOf(*archive);
}

absl::StatusOr<v1::PackageManifest> UnpackPackage(const std::string& path, absl::string_view digest,
                                                  const std::string& directory) {
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<Archive> archive, OpenArchive(path));
  FSDPD_ASSIGN_OR_RETURN(v1::PackageManifest manifest, ManifestOf(*archive));
  if (manifest.model().digest() != digest)
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": another package than the job was submitted with (got digest ", manifest.model().digest(),
        ", want ", digest, "); copy the package to this node, or submit the job again"));
  FSDPD_RETURN_IF_ERROR(CheckMembers(*archive, manifest));
  FSDPD_ASSIGN_OR_RETURN(const UniqueFd lock, LockDirectory(directory));
  const absl::Status unpacked = Unpack(*archive, manifest, directory);
  if (unpacked.ok()) return manifest;
  std::error_code ignored;
  for (const v1::PackageFile& file : manifest.files())
    std::filesystem::remove(absl::StrCat(directory, "/", file.name()), ignored);
  return unpacked;
}

}  // namespace fsdpd
