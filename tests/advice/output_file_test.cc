#include "advice/output_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "support/checkpoint_writer.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class OutputFileTest : public ::testing::Test {
 protected:
  TempDir directory_;
  const std::string path_ = directory_ / "out.json";
};

TEST_F(OutputFileTest, ReplacesAFileAsAWhole) {
  WriteWholeFile(path_, "a longer text from before");

  ASSERT_TRUE(CheckWritable(path_).ok());
  EXPECT_EQ(ReadWholeFile(path_), "a longer text from before");
  ASSERT_TRUE(WriteOutputFile(path_, "new").ok());

  EXPECT_EQ(ReadWholeFile(path_), "new");
}

TEST_F(OutputFileTest, PutsNoFileInThePlaceOfSomethingElse) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  fs::create_symlink("/dev/null", directory_ / "link");

  for (const std::string& path : {path_, directory_ / "link"}) {
    const Status status = CheckWritable(path);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(path + ": expected a regular file or none, found another kind"));
  }
  EXPECT_FALSE(CheckWritable(directory_.path()).ok());
  EXPECT_THAT(CheckWritable("").message(), HasSubstr("found an empty one"));

  EXPECT_TRUE(fs::is_fifo(path_));
  EXPECT_TRUE(fs::is_symlink(directory_ / "link"));
}

TEST_F(OutputFileTest, LeavesNoDraftWhereItCannotWrite) {
  fs::create_directory(path_);

  EXPECT_FALSE(WriteOutputFile(path_, "new").ok());

  EXPECT_FALSE(fs::exists(path_ + ".part"));
}

}  // namespace
}  // namespace cairn
