// The driver's table of functions: each does what the default driver (sec2) does, by pread and pwrite.
// Source: the HDF5 library's "Virtual File Layer".
// tests: tests/io/test_hdf5.cpp
#include "io/hdf5/driver.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#if __has_include(<H5FDdevelop.h>)  // where later libraries keep it
#include <H5FDdevelop.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <system_error>

namespace ejk::io {

namespace {

constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // one call moves at most 2 GiB

// The library hands it around as an H5FD_t, which is its first member.
struct DiskFile {
  H5FD_t base{};
  Hdf5Disk* disk = nullptr;
  int fd = -1;
  bool writes = false;
  haddr_t end_of_space = 0, end_of_file = 0;
  dev_t device = 0;
  ino_t inode = 0;
};

DiskFile& file_of(H5FD_t* file) { return *reinterpret_cast<DiskFile*>(file); }
const DiskFile& file_of(const H5FD_t* file) { return *reinterpret_cast<const DiskFile*>(file); }

// In the words in which the default driver says it.
herr_t fail(const char* doing, int code) {
  H5Epush2(H5E_DEFAULT, "driver.cpp", doing, 0, H5E_ERR_CLS, H5E_IO, H5E_READERROR,
           "%s, error message = '%s'", doing, std::generic_category().message(code).c_str());
  return -1;
}

void note_failed_write(const DiskFile& file, int code) {
  if (file.disk->write_error == 0) file.disk->write_error = code;
}

// What a file was opened with, for others that are opened as it was; the library frees it.
void* copy_of_settings(H5FD_t* file) {
  auto* copy = static_cast<Hdf5Disk**>(std::malloc(sizeof(void*)));
  if (copy != nullptr) *copy = file_of(file).disk;
  return copy;
}

H5FD_t* open_file(const char* name, unsigned flags, hid_t access, haddr_t) {
  const auto* disk = static_cast<Hdf5Disk* const*>(H5Pget_driver_info(access));
  if (disk == nullptr) return nullptr;
  const bool writes = (flags & H5F_ACC_RDWR) != 0;
  struct stat status {};
  errno = EACCES;
  int fd = -1;
  if ((*disk)->name == name)
    fd = dup((*disk)->fd);
  else if ((*disk)->allow_others && !writes)
    fd = open(name, O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0 || fstat(fd, &status) != 0) {
    fail("unable to open file", errno);
    if (fd >= 0) close(fd);
    return nullptr;
  }
  auto file = std::make_unique<DiskFile>();
  file->disk = *disk;
  file->fd = fd;
  file->writes = writes;
  file->end_of_file = static_cast<haddr_t>(status.st_size);
  file->device = status.st_dev;
  file->inode = status.st_ino;
  return &file.release()->base;
}

herr_t close_file(H5FD_t* file) {
  const std::unique_ptr<DiskFile> closed(&file_of(file));
  if (close(closed->fd) != 0 && errno != EINTR && closed->writes) note_failed_write(*closed, errno);
  return 0;
}

// Whether two are the same file, and an order among those that are not.
int compare_files(const H5FD_t* a, const H5FD_t* b) {
  const DiskFile &x = file_of(a), &y = file_of(b);
  if (x.device != y.device) return x.device < y.device ? -1 : 1;
  return x.inode == y.inode ? 0 : x.inode < y.inode ? -1 : 1;
}

herr_t say_features(const H5FD_t*, unsigned long* flags) {
  *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
           H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
  return 0;
}

haddr_t end_of_space(const H5FD_t* file, H5FD_mem_t) { return file_of(file).end_of_space; }
haddr_t end_of_file(const H5FD_t* file, H5FD_mem_t) { return file_of(file).end_of_file; }
herr_t set_end_of_space(H5FD_t* file, H5FD_mem_t, haddr_t address) {
  file_of(file).end_of_space = address;
  return 0;
}

// Behind the end there are zeros.
herr_t read_file(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, std::size_t size, void* to) {
  auto* out = static_cast<char*>(to);
  if (address > INT64_MAX || size > INT64_MAX - address) return fail("file read failed", EOVERFLOW);
  while (size > 0) {
    const ssize_t got =
        pread(file_of(file).fd, out, std::min(size, kMostAtOnce), static_cast<off_t>(address));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      if (file_of(file).disk->read_error == 0) file_of(file).disk->read_error = errno;
      return fail("file read failed", errno);
    }
    if (got == 0) {
      std::memset(out, 0, size);
      break;
    }
    const auto n = static_cast<std::size_t>(got);
    out += n, address += n, size -= n;
  }
  return 0;
}

herr_t write_file(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, std::size_t size, const void* from) {
  DiskFile& to = file_of(file);
  to.end_of_file = std::max<haddr_t>(to.end_of_file, address + size);
  const auto* data = static_cast<const char*>(from);
  while (size > 0 && to.disk->write_error == 0) {
    const ssize_t wrote = pwrite(to.fd, data, std::min(size, kMostAtOnce), static_cast<off_t>(address));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      note_failed_write(to, wrote < 0 ? errno : EIO);
      break;
    }
    const auto n = static_cast<std::size_t>(wrote);
    data += n, address += n, size -= n;
  }
  return 0;
}

herr_t truncate_file(H5FD_t* file, hid_t, hbool_t) {
  DiskFile& cut = file_of(file);
  if (!cut.writes || cut.end_of_space == cut.end_of_file) return 0;
  if (cut.disk->write_error == 0 && ftruncate(cut.fd, static_cast<off_t>(cut.end_of_space)) != 0)
    note_failed_write(cut, errno);
  cut.end_of_file = cut.end_of_space;
  return 0;
}

H5FD_class_t make_class() {
  H5FD_class_t driver{};
#ifdef H5FD_CLASS_VERSION
  driver.version = H5FD_CLASS_VERSION;
  driver.value = static_cast<H5FD_class_value_t>(600);  // any from 512 on is a driver of one's own
#endif
  driver.name = "ejk";
  driver.maxaddr = INT64_MAX;
  driver.fc_degree = H5F_CLOSE_WEAK;
  driver.fapl_size = sizeof(void*);
  driver.fapl_get = copy_of_settings;
  driver.open = open_file;
  driver.close = close_file;
  driver.cmp = compare_files;
  driver.query = say_features;
  driver.get_eoa = end_of_space;
  driver.set_eoa = set_end_of_space;
  driver.get_eof = end_of_file;
  driver.read = read_file;
  driver.write = write_file;
  driver.truncate = truncate_file;
  const H5FD_mem_t lists[] = H5FD_FLMAP_DICHOTOMY;  // as the default driver's
  std::copy(std::begin(lists), std::end(lists), std::begin(driver.fl_map));
  return driver;
}

}  // namespace

Hdf5Handle hdf5_access(Hdf5Disk& disk) {
  static const H5FD_class_t driver = make_class();
  static const hid_t id = H5FDregister(&driver);
  Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  const Hdf5Disk* const info = &disk;
  H5Pset_driver(access.id(), id, &info);
  return access;
}

}  // namespace ejk::io
