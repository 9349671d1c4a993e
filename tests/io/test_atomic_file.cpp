// Atomic files: complete or absent.
#include "io/atomic_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/support.hpp"

using namespace ejk;
using namespace ejk::test;
using Names = std::vector<std::string>;

TEST_CASE("until the commit the old file stands, and after it the new one, whole") {
  Folder folder;
  put(folder / "a", "old");
  {
    io::AtomicFile file(folder / "a");
    file.write("new", 3);
    CHECK(get(folder / "a") == "old");
    CHECK(folder.names().size() == 2);
    CHECK(fs::path(file.path()).filename().string().starts_with(".a.ejk-"));
    file.commit();
  }
  CHECK(get(folder / "a") == "new");
  CHECK(folder.names() == Names{"a"});
}

TEST_CASE("a file that is not committed leaves nothing behind") {
  Folder folder;
  put(folder / "a", "old");
  { io::AtomicFile(folder / "a").write("new", 3); }
  { io::AtomicFile(folder / "b").write("new", 3); }
  CHECK(get(folder / "a") == "old");
  CHECK(folder.names() == Names{"a"});
}

TEST_CASE("a signal's clean-up removes what is being written, and only that") {
  Folder folder;
  io::AtomicFile done(folder / "done"), doing(folder / "doing");
  done.commit();
  const io::TemporaryPath made = io::make_folder(folder / "sub");
  io::AtomicFile inside(folder / "sub/x", made);
  remove_temporary_files();
  CHECK(folder.names() == Names{"done"});
  CHECK_THROWS_AS(doing.commit(), Error);
}

TEST_CASE("a link is followed to its target, also where the target is still to be made") {
  Folder folder;
  fs::create_directory(folder / "there");
  put(folder / "there/a", "old");
  fs::create_symlink("there/a", folder / "link");
  fs::create_symlink("there/b", folder / "dangling");
  for (const char* name : {"link", "dangling"}) {
    io::AtomicFile file(folder / name);
    file.write("new", 3);
    file.commit();
    CHECK(fs::is_symlink(folder / name));
  }
  CHECK(get(folder / "there/a") == "new");
  CHECK(get(folder / "there/b") == "new");
  fs::create_symlink("loop", folder / "loop");
  CHECK(error_of(Error::Kind::output, [&] { io::AtomicFile file(folder / "loop"); }).find("symbolic links") !=
        std::string::npos);
}

TEST_CASE("the mode of an existing file is kept, a new one obeys the umask") {
  Folder folder;
  const mode_t before = umask(027);
  const auto mode = [&](const char* name) {
    struct stat status {};
    REQUIRE(stat((folder / name).c_str(), &status) == 0);
    return status.st_mode & 07777u;
  };
  put(folder / "a", "");
  chmod((folder / "a").c_str(), 0604);
  io::AtomicFile(folder / "a").commit();
  io::AtomicFile(folder / "b").commit();
  CHECK(mode("a") == 0604);
  CHECK(mode("b") == 0640);
  umask(before);
}

TEST_CASE("a pipe or a device is written straight to") {
  Folder folder;
  REQUIRE(mkfifo((folder / "p").c_str(), 0600) == 0);
  const int reader = open((folder / "p").c_str(), O_RDONLY | O_NONBLOCK);
  io::AtomicFile file(folder / "p");
  CHECK(!file.is_temporary());
  file.write("abc", 3);
  file.commit();
  char text[4] = {};
  CHECK(read(reader, text, 3) == 3);
  CHECK(std::string(text) == "abc");
  close(reader);
  CHECK(folder.names() == Names{"p"});
  CHECK(error_of(Error::Kind::output, [] { io::AtomicFile("/dev/full").write("x", 1); }) ==
        "/dev/full: No space left on device");
}

TEST_CASE("a target that cannot be written is named with the reason") {
  Folder folder;
  fs::create_directory(folder / "d");
  CHECK(contains(error_of(Error::Kind::output, [&] { io::AtomicFile file(folder / "d"); }),
                 "/d: Is a directory"));
  CHECK(contains(error_of(Error::Kind::output, [&] { io::AtomicFile file(folder / "none/a"); }),
                 "none does not exist"));
  // As long as a name may be; the temporary one must fit too.
  const std::string longest(255, 'x');
  io::AtomicFile(folder / longest).commit();
  CHECK(folder.names() == Names{"d", longest});
}

TEST_CASE("of several files all are put in place or none") {
  Folder folder;
  put(folder / "a", "old");
  fs::create_directory(folder / "d");
  for (const bool fails : {true, false}) {
    std::vector<io::AtomicFile> files;
    for (const char* name : {"a", "b", "c"}) files.emplace_back(folder / name).write("new", 3);
    // Something gets in the way between the check and the rename.
    if (fails) fs::create_directory(folder / "c");
    if (fails) {
      CHECK(contains(error_of(Error::Kind::output, [&] { commit_all(files); }), "/c: "));
      fs::remove(folder / "c");
    } else {
      commit_all(files);
    }
    files.clear();
    CHECK(folder.names() == (fails ? Names{"a", "d"} : Names{"a", "b", "c", "d"}));
    CHECK(get(folder / "a") == (fails ? "old" : "new"));
  }
}

TEST_CASE("a folder that came meanwhile gets the files, and keeps its own") {
  Folder folder;
  const std::string target = folder / "out";
  for (const bool comes : {false, true}) {
    CAPTURE(comes);
    {
      io::TemporaryPath made = io::make_folder(target);
      std::vector<io::AtomicFile> files;
      for (const char* name : {"/a", "/b"}) files.emplace_back(target + name, made).write("new", 3);
      CHECK(!fs::exists(target));
      if (comes) {
        fs::create_directory(target);
        put(target + "/a", "old"), put(target + "/c", "old");
      }
      commit_folder(made, target, files);
    }
    CHECK(folder.names() == Names{"out"});
    for (const char* name : {"/a", "/b"}) CHECK(get(target + name) == "new");
    CHECK(fs::exists(target + "/c") == comes);
    fs::remove_all(target);
  }
  // A link is followed, here as for a file.
  fs::create_symlink("there", folder / "link");
  std::vector<io::AtomicFile> none;
  {
    io::TemporaryPath made = io::make_folder(folder / "link");
    commit_folder(made, folder / "link", none);
  }
  CHECK(folder.names() == Names{"link", "there"});
}

TEST_CASE("room is reserved, and refused at once where there is not so much") {
  Folder folder;
  put(folder / "a", "old");
  const std::string text(3 << 20, 'x');
  {
    io::AtomicFile file(folder / "a");
    file.reserve(static_cast<std::int64_t>(text.size()));
    file.write(text.data(), static_cast<std::int64_t>(text.size()));
    file.commit();
  }
  CHECK(get(folder / "a") == text);
  {
    io::AtomicFile file(folder / "a");
    // Not every file system can reserve; one that can has not so much.
    try {
      file.reserve(std::int64_t{1} << 61);
    } catch (const Error& e) {
      CHECK(e.kind() == Error::Kind::output);
      CHECK(contains(e.message(), folder / "a"));
    }
  }
  CHECK(get(folder / "a") == text);
  CHECK(folder.names() == Names{"a"});
}

TEST_CASE("what is to be stored at once is stored, or says that it cannot be") {
  Folder folder;
  put(folder / "old", "old");
  fs::create_symlink("old", folder / "link");
  for (const char* name : {"link", "new"}) {
    io::AtomicFile file(folder / name, Sync::now);
    file.write("new", 3);
    file.commit();
  }
  CHECK(get(folder / "old") == "new");
  CHECK(get(folder / "new") == "new");
  io::AtomicFile free(folder / "free", Sync::now);
  CHECK(free.commit_new());
  write_files({{folder / "a", "1"}, {folder / "old", "2"}}, Sync::now);
  CHECK(get(folder / "old") == "2");
  CHECK(folder.names() == Names{"a", "free", "link", "new", "old"});

  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const io::File out(ends[0]), in(ends[1]);
  io::sync_now(in.fd(), "a pipe, which knows no disk");
  CHECK(error_of(Error::Kind::output, [] { io::sync_now(-1, "x.npy"); }) ==
        "x.npy: it cannot be stored on the disk: Bad file descriptor");
  io::FolderSync folders;
  folders.add_parent_of(folder / "a");
  CHECK(error_of(Error::Kind::output, [&] { folders.add_parent_of(folder / "missing/a"); }) ==
        folder / "missing/a" +
            ": its folder cannot be opened, to store it on the disk: No such file or directory");
  folders.run();
}
