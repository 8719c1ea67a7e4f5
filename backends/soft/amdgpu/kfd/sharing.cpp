// SPDX-License-Identifier: Apache-2.0
//
// Ioctls by which buffers come from and go to other processes. What is handed over names a piece of
// a process's file, which the other one opens through /proc, as long as the owner lives.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>

#include "backends/soft/amdgpu/kfd/driver.h"
#include "backends/soft/amdgpu/kfd/files.h"

namespace vitamin::soft::amdgpu::kfd {
namespace {

// A piece in four words, in pages, as the IPC ioctls carry it.
struct Piece {
  std::uint32_t process, file, page, pages;
};

// What a file that stands for a dma-buf holds. It is not the memory: a program that maps it sees
// this.
struct DmabufRecord {
  char mark[8];
  Piece piece;
  std::uint32_t gpu, flags;
};
constexpr char kMark[8] = "kfd-dma";

std::optional<DmabufRecord> read_record(std::uint32_t descriptor) {
  DmabufRecord record{};
  if (::pread(static_cast<int>(descriptor), &record, sizeof record, 0) != sizeof record ||
      std::memcmp(record.mark, kMark, sizeof kMark) != 0)
    return std::nullopt;
  return record;
}

Piece piece_of(const Buffer& buffer) {
  return {.process = static_cast<std::uint32_t>(::getpid()),
          .file = static_cast<std::uint32_t>(buffer.file),
          .page = static_cast<std::uint32_t>(buffer.offset / kPageBytes),
          .pages = static_cast<std::uint32_t>(buffer.bytes / kPageBytes)};
}

// The owner's file; -1 when it or the piece is gone.
int open_file_of(const Piece& piece) {
  const std::string name =
      "/proc/" + std::to_string(piece.process) + "/fd/" + std::to_string(piece.file);
  const int file = ::open(name.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return -1;
  struct stat status {};
  const std::uint64_t end = (std::uint64_t{piece.page} + piece.pages) * kPageBytes;
  if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
      end <= static_cast<std::uint64_t>(status.st_size))
    return file;
  ::close(file);
  return -1;
}

bool import_piece(const Piece& piece, Buffer& buffer) {
  buffer.file = open_file_of(piece);
  buffer.file_is_ours = false;
  buffer.offset = piece.page * kPageBytes;
  buffer.bytes = piece.pages * kPageBytes;
  return buffer.file >= 0;
}

}  // namespace

IoctlResult Driver::export_dmabuf(ExportDmabuf& a) {
  const std::lock_guard lock(mutex_);
  Buffer* const buffer = find_buffer(a.handle);
  if (buffer == nullptr || buffer->file < 0) return -EINVAL;
  if ((a.flags & ~static_cast<std::uint32_t>(O_CLOEXEC | O_RDWR)) != 0) return -EINVAL;
  DmabufRecord record{
      .mark = {}, .piece = piece_of(*buffer), .gpu = buffer->gpu, .flags = buffer->flags};
  std::memcpy(record.mark, kMark, sizeof kMark);
  const int file = ::memfd_create("vitamin-dmabuf", (a.flags & O_CLOEXEC) != 0 ? MFD_CLOEXEC : 0);
  if (file < 0) return -EMFILE;
  if (::pwrite(file, &record, sizeof record, 0) != sizeof record ||
      ::ftruncate(file, static_cast<off_t>(buffer->bytes)) != 0) {
    ::close(file);
    return -ENOMEM;
  }
  a.dmabuf_fd = static_cast<std::uint32_t>(file);
  return 0;
}

IoctlResult Driver::get_dmabuf_info(kfd_ioctl_get_dmabuf_info_args& a) {
  const auto record = read_record(a.dmabuf_fd);
  if (!record) return -EINVAL;
  a.size = record->piece.pages * kPageBytes;
  a.gpu_id = gpu_id(record->gpu);
  a.flags = record->flags;
  a.metadata_size = 0;
  return 0;
}

IoctlResult Driver::import_dmabuf(kfd_ioctl_import_dmabuf_args& a) {
  const Gpu* const gpu = find_gpu(a.gpu_id);
  const auto record = read_record(a.dmabuf_fd);
  if (gpu == nullptr || !record) return -EINVAL;
  const std::lock_guard lock(mutex_);
  if (const IoctlResult answer = bound(*gpu, -ENODEV); answer != 0) return answer;
  Buffer buffer{.gpu = gpu->number, .flags = record->flags, .va = a.va_addr};
  if (!import_piece(record->piece, buffer)) return -EINVAL;
  a.handle = add_buffer(buffer);
  return 0;
}

IoctlResult Driver::ipc_export(IpcExportHandle& a) {
  const std::lock_guard lock(mutex_);
  Buffer* const buffer = find_buffer(a.handle);
  if (buffer == nullptr || buffer->file < 0) return -EINVAL;
  const Piece piece = piece_of(*buffer);
  static_assert(sizeof piece == sizeof a.share_handle);
  std::memcpy(a.share_handle, &piece, sizeof piece);
  return 0;
}

// The piece lies in another file than the render node's, so the mmap offset names a place there
// that nothing else has: the piece itself is mapped when a GPU maps it. Without an offset the thunk
// would not say to which node the memory belongs.
IoctlResult Driver::ipc_import(IpcImportHandle& a) {
  const Gpu* const gpu = find_gpu(a.gpu_id);
  if (gpu == nullptr) return -EINVAL;
  Piece piece{};
  std::memcpy(&piece, a.share_handle, sizeof piece);
  const std::lock_guard lock(mutex_);
  if (const IoctlResult answer = bound(*gpu, -ENODEV); answer != 0) return answer;
  Buffer buffer{.gpu = gpu->number, .flags = KFD_IOC_ALLOC_MEM_FLAGS_VRAM, .va = a.va_addr};
  if (!import_piece(piece, buffer)) return -EINVAL;
  const auto place = add_memory(buffer.bytes);
  if (!place) return -ENOMEM;
  a.handle = add_buffer(buffer);
  a.mmap_offset = *place;
  return 0;
}

}  // namespace vitamin::soft::amdgpu::kfd
