// Copies in an object store: what is there, what is refused, and what ends a call of rclone. The store is rclone's
// `local` backend, so that no server is needed; tests/stores has servers.

#include "mirror/bucket.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/unique_fd.h"
#include "mirror/headers.h"
#include "mirror/verify.h"
#include "mirror_case.h"
#include "store/mirrors.h"
#include "store/names.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// A port of this machine at which nobody listens, until somebody does.
class Port {
 public:
  Port() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    EXPECT_EQ(::bind(socket(), reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::getsockname(socket(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    number_ = ntohs(address.sin_port);
  }
  [[nodiscard]] int socket() const { return socket_.get(); }
  [[nodiscard]] int number() const { return number_; }

 private:
  UniqueFd socket_;
  int number_ = 0;
};

class BucketTest : public ::testing::Test, protected MirrorCase {
 protected:
  void SetUp() override {
    auto rclone = Rclone::Find();
    if (!rclone.ok()) GTEST_SKIP() << rclone.status();
    rclone_ = *std::move(rclone);
    rclone_.environment.emplace_back("RCLONE_CONFIG_DISK_TYPE=local");
    elements = kFew;
  }

  [[nodiscard]] MirrorOptions ToStore(const MirrorRules& rules = {}) {
    MirrorOptions options = Options(rules);
    options.target = "rclone:disk:" + store_;
    options.rclone = rclone_;
    return options;
  }
  [[nodiscard]] MirrorOptions ToServerAt(const Port& port) {
    MirrorOptions options = Options();
    options.target = "s3://bucket/run";
    ::setenv("AWS_ENDPOINT_URL", fmt::format("http://127.0.0.1:{}", port.number()).c_str(), 1);
    ::setenv("AWS_ACCESS_KEY_ID", "key", 1);
    ::setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    options.rclone = *Rclone::Find();
    for (const auto* name : {"AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}) ::unsetenv(name);
    return options;
  }
  [[nodiscard]] MirrorOptions BackFromStore() {
    MirrorOptions options = Options();
    options.root = "rclone:disk:" + store_;
    options.rclone = rclone_;
    return options;
  }
  [[nodiscard]] std::string Folder(const StoredCheckpoint& one) const {
    return store_ + "/" + Bucket::FolderName(one.info);
  }
  /// The folders of checkpoints whose bytes are those that were saved.
  [[nodiscard]] std::vector<std::string> Good() const {
    std::vector<std::string> good;
    for (const auto& entry : fs::directory_iterator(store_)) {
      if (!entry.is_directory() || !fs::exists(entry.path() / kManifestName)) continue;
      EXPECT_EQ(CompareFolder(entry.path()), Status::Ok());
      good.push_back(entry.path().filename());
    }
    std::ranges::sort(good);
    return good;
  }
  /// Its calls are noted.
  [[nodiscard]] Rclone Counting() const {
    Rclone counting = rclone_;
    counting.program = base() + "/rclone";
    std::ofstream(counting.program) << "#!/bin/sh\necho $1 >> " << base() << "/calls\nexec " << rclone_.program
                                    << " \"$@\"\n";
    fs::permissions(counting.program, fs::perms::owner_all);
    return counting;
  }
  [[nodiscard]] std::string Calls() const {
    std::ifstream calls(base() + "/calls");
    return {std::istreambuf_iterator<char>(calls), {}};
  }
  static std::string Name(const StoredCheckpoint& one) { return Bucket::FolderName(one.info); }

  const std::string store_ = base() + "/store";
  const std::unique_ptr<IoQueue> queue_ = MakeQueue(ThreadsFactory());
  Rclone rclone_;
};

TEST_F(BucketTest, CopiesNewestFirstByteForByteAndBack) {
  const StoredCheckpoint first = Save(10);
  const StoredCheckpoint second = Save(20);

  const auto copied = CopyAll(*OpenMirror(*queue_, ToStore()));

  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_THAT(*copied, ElementsAre(20, 10));
  EXPECT_THAT(Good(), ElementsAre(Name(first), Name(second)));
  EXPECT_THAT(Leftovers(root()), IsEmpty());
  const auto record = ReadMirrorRecord(root(), MirrorId("rclone:disk:" + store_));
  ASSERT_TRUE(record);
  EXPECT_EQ(record->checkpoints.size(), 2U);

  const auto back = CopyAll(*OpenMirror(*queue_, BackFromStore()));

  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_THAT(*back, ElementsAre(20, 10));
  EXPECT_THAT(GoodSteps(target()), ElementsAre(10, 20));
  const auto writer = ReadWriter(target());
  ASSERT_TRUE(writer.ok() && *writer);
  EXPECT_EQ((*writer)->root, id());
  EXPECT_GT((*writer)->line, 1000U) << "the root may have gone on unseen before it was lost";
}

// Of more than one piece, with a frozen file that the store copies by itself.
TEST_F(BucketTest, CopiesLargeAndFrozenFiles) {
  elements = kMany;
  frozen = 1;
  const StoredCheckpoint first = Save(1);
  ASSERT_TRUE(CopyAll(*OpenMirror(*queue_, ToStore())).ok());
  const StoredCheckpoint second = Save(2);

  const auto mirror = OpenMirror(*queue_, ToStore());
  const auto copied = mirror->CopyNext([] { return false; });

  ASSERT_TRUE(copied.ok() && *copied) << copied.status();
  EXPECT_LT((*copied)->bytes, (*copied)->info.bytes - 1'000'000) << "the frozen file was sent again";
  EXPECT_THAT(Good(), ElementsAre(Name(first), Name(second)));
  ASSERT_TRUE(CopyAll(*OpenMirror(*queue_, BackFromStore())).ok());
  EXPECT_THAT(GoodSteps(target()), ElementsAre(1, 2));
}

TEST_F(BucketTest, WhatIsDamagedInTheRootHasNoManifestThere) {
  const StoredCheckpoint one = Save(10);
  FlipABit(10, 1, fs::file_size(StepFolder(10) + "/" + ShardName(1)) - 1);

  const auto mirror = OpenMirror(*queue_, ToStore());
  const auto copied = CopyAll(*mirror);

  EXPECT_EQ(copied.status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(copied.status().message(), HasSubstr("CRC32C of data bytes"));
  EXPECT_EQ(mirror->damaged(), 1U);
  EXPECT_FALSE(fs::exists(Folder(one) + "/" + ShardName(1)));
  EXPECT_FALSE(fs::exists(Folder(one) + "/manifest.json"));
}

TEST_F(BucketTest, WhatIsDamagedThereIsNotBroughtBack) {
  const StoredCheckpoint first = Save(10);
  const StoredCheckpoint second = Save(20);
  const StoredCheckpoint third = Save(30);
  ASSERT_TRUE(CopyAll(*OpenMirror(*queue_, ToStore())).ok());
  std::string bytes = ReadWholeFile(Folder(third) + "/" + ShardName(0));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  WriteWholeFile(Folder(third) + "/" + ShardName(0), bytes);
  fs::resize_file(Folder(second) + "/" + ShardName(0), 5000);

  const auto mirror = OpenMirror(*queue_, BackFromStore());
  std::vector<Status> ends;
  for (int i = 0; i < 3; ++i) ends.push_back(mirror->CopyNext([] { return false; }).status());

  EXPECT_THAT(ends[0].message(), AllOf(HasSubstr(Name(third)), HasSubstr("CRC32C of data bytes")));
  EXPECT_THAT(ends[1].message(), AllOf(HasSubstr(Name(second)), HasSubstr("bytes, found 5000")));
  EXPECT_EQ(ends[2], Status::Ok());
  EXPECT_THAT(GoodSteps(target()), ElementsAre(10));
}

// Truncated by the store, or by a version of rclone that takes a cut-off stream for the whole.
TEST_F(BucketTest, WhatIsTruncatedThereIsCopiedAgainBeforeAnythingIsRetired) {
  Save(10);
  const StoredCheckpoint second = Save(20);
  ASSERT_TRUE(CopyAll(*OpenMirror(*queue_, ToStore())).ok());
  fs::resize_file(Folder(second) + "/" + ShardName(1), 100);

  const auto copied = CopyAll(*OpenMirror(*queue_, ToStore({.keep_last = 1})));

  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_THAT(*copied, ElementsAre(20));
  EXPECT_THAT(Good(), ElementsAre(Name(second)));
}

TEST_F(BucketTest, GoesOnWithWhatAKilledMirrorHasLeft) {
  const StoredCheckpoint one = Save(10);
  ASSERT_TRUE(CopyAll(*OpenMirror(*queue_, ToStore())).ok());
  fs::remove(Folder(one) + "/manifest.json");
  fs::resize_file(Folder(one) + "/" + ShardName(0), 100);
  const std::uint64_t kept = fs::file_size(Folder(one) + "/" + ShardName(1));

  const auto mirror = OpenMirror(*queue_, ToStore());
  const auto copied = mirror->CopyNext([] { return false; });

  ASSERT_TRUE(copied.ok() && *copied) << copied.status();
  EXPECT_LE((*copied)->bytes + kept, (*copied)->info.bytes);
  EXPECT_THAT(Good(), ElementsAre(Name(one)));
}

TEST_F(BucketTest, WhatHasNoManifestGoesOnceItIsOld) {
  Save(10);
  const std::string fresh = store_ + "/" + StepName(3) + ".attempt-fresh";
  const std::string old = store_ + "/" + StepName(4) + ".attempt-old";
  for (const std::string& folder : {fresh, old}) {
    fs::create_directories(folder);
    WriteWholeFile(folder + "/" + ShardName(0), "half");
  }
  fs::last_write_time(old + "/" + ShardName(0), fs::file_time_type::clock::now() - std::chrono::hours(25));

  ASSERT_TRUE(CopyAll(*OpenMirror(*queue_, ToStore())).ok());

  EXPECT_TRUE(fs::exists(fresh));
  EXPECT_FALSE(fs::exists(old));
}

TEST_F(BucketTest, WhatIsDamagedThereGoesOnceItWouldHaveBeenRetired) {
  const StoredCheckpoint first = Save(10);
  const StoredCheckpoint second = Save(20);
  ASSERT_TRUE(CopyAll(*OpenMirror(*queue_, ToStore())).ok());
  WriteWholeFile(Folder(first) + "/manifest.json", "{}");
  fs::remove_all(StepFolder(10));
  ASSERT_TRUE(CopyAll(*OpenMirror(*queue_, ToStore())).ok());
  ASSERT_TRUE(fs::exists(Folder(first))) << "nothing is retired";

  ASSERT_TRUE(CopyAll(*OpenMirror(*queue_, ToStore({.keep_last = 1}))).ok());

  EXPECT_FALSE(fs::exists(Folder(first)));
  EXPECT_THAT(Good(), ElementsAre(Name(second)));
}

TEST_F(BucketTest, AnOlderSaveOfAStepCountsForReadersWhileTheNewerLacksAnObject) {
  const StoredCheckpoint older = Save(10);
  ASSERT_TRUE(CopyAll(*OpenMirror(*queue_, ToStore())).ok());
  fs::copy(store_, base() + "/store-before", fs::copy_options::recursive);
  const StoredCheckpoint newer = Save(10, 1, 2);
  ASSERT_TRUE(CopyAll(*OpenMirror(*queue_, ToStore())).ok());
  fs::copy(base() + "/store-before/" + Name(older), Folder(older), fs::copy_options::recursive);
  fs::remove(Folder(newer) + "/" + ShardName(1));

  const auto back = CopyAll(*OpenMirror(*queue_, BackFromStore()));
  const auto again = CopyAll(*OpenMirror(*queue_, ToStore()));

  ASSERT_TRUE(back.ok() && again.ok()) << back.status() << again.status();
  EXPECT_EQ(ReadCheckpointFolder(target() + "/" + StepName(10))->info.attempt, older.info.attempt);
  EXPECT_THAT(*again, ElementsAre(10)) << "the mirror completes its own";
  EXPECT_THAT(Good(), ElementsAre(Name(newer)));
}

// As where a supervisor ignores the signal: the kernel tells nobody how a child has ended.
TEST_F(BucketTest, AFailureThatNobodyIsToldIsNoSuccess) {
  Save(10);
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  const auto opened = Mirror::Open(*queue_, ToStore());
  std::signal(SIGCHLD, before);

  EXPECT_THAT(opened.status().message(), HasSubstr("waiting for rclone"));
}

TEST_F(BucketTest, ManyManifestsAreReadByOneCall) {
  std::vector<StoredCheckpoint> saved;
  for (std::uint64_t step = 1; step <= 12; ++step) saved.push_back(Save(step));
  ASSERT_TRUE(CopyAll(*OpenMirror(*queue_, ToStore())).ok());
  fs::resize_file(Folder(saved[4]) + "/manifest.json", 10);

  Bucket bucket(Counting(), *BucketAddress::Parse(ToStore().target));
  const auto list = bucket.List();

  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->size(), 12U);
  EXPECT_EQ(std::ranges::count_if(*list, [](const auto& one) { return one.info.status.ok(); }), 11);
  EXPECT_EQ(list->back().info.step, 5U);
  EXPECT_EQ(list->back().info.status.code(), StatusCode::kCorrupt);
  EXPECT_EQ(Calls(), "lsjson\ncopy\n");
}

TEST_F(BucketTest, ManyHeadersAreReadByOneCall) {
  std::vector<StoredCheckpoint> saved;
  for (std::uint64_t step = 1; step <= 9; ++step) saved.push_back(Save(step));
  elements = 70'000;  // Of more than a header's first piece.
  for (std::uint64_t step = 10; step <= 18; ++step) saved.push_back(Save(step));
  ASSERT_TRUE(CopyAll(*OpenMirror(*queue_, ToStore())).ok());
  const std::string one = Folder(saved[12]) + "/" + ShardName(0);
  std::string bytes = ReadWholeFile(one);
  bytes[20] = static_cast<char>(bytes[20] ^ 1);
  WriteWholeFile(one, bytes);
  Bucket bucket(Counting(), *BucketAddress::Parse(ToStore().target));
  const auto list = bucket.List();
  ASSERT_TRUE(list.ok()) << list.status();
  std::vector<ShardFile> files(list->size());
  std::vector<WantedHeader> wanted;
  for (std::size_t i = 0; i < files.size(); ++i) {
    files[i].with_values = false;
    wanted.push_back({.checkpoint = &(*list)[i], .shard = &(*list)[i].manifest.shards.front(), .file = &files[i]});
  }

  FetchHeaders(bucket, wanted);

  for (const WantedHeader& header : wanted) {
    const bool damaged = header.checkpoint->info.step == 13;
    EXPECT_EQ(header.status.code(), damaged ? StatusCode::kCorrupt : StatusCode::kOk) << header.status;
    EXPECT_EQ(header.file->header.step, damaged ? 0 : header.checkpoint->info.step);
  }
  // The last one alone: nothing is known of what has another digest.
  EXPECT_EQ(Calls(), "lsjson\ncopy\ncopy\ncat\ncat\n");
}

TEST_F(BucketTest, VerifyReadsEveryByteAndNamesWhatDiffers) {
  elements = kMany;
  frozen = 1;
  const StoredCheckpoint one = Save(10);
  ASSERT_TRUE(CopyAll(*OpenMirror(*queue_, ToStore())).ok());
  const auto pool = *BufferPool::Make(16U << 20, 4U << 20, 4);
  const auto verify = [&](const Progress& progress = {}) {
    Bucket bucket(rclone_, *BucketAddress::Parse("rclone:disk:" + store_));
    const auto list = bucket.List();
    EXPECT_TRUE(list.ok()) << list.status();
    return VerifyInBucket(bucket, list->front(), *pool, progress);
  };
  std::uint64_t last = 0;
  EXPECT_EQ(verify([&](std::uint64_t done, std::uint64_t total) {
              last = done;
              return done <= total;
            }),
            Status::Ok());
  std::uint64_t bytes = 0;
  for (const ManifestShard& shard : one.manifest.shards) bytes += shard.length;
  EXPECT_EQ(last, bytes);

  for (const std::string& file : {ShardName(1), KeptName(0, "frozen")}) {
    const std::string path = Folder(one) + "/" + file;
    const std::string good = ReadWholeFile(path);
    std::string bad = good;
    bad.back() = static_cast<char>(bad.back() ^ 1);
    WriteWholeFile(path, bad);
    const Status damaged = verify();
    EXPECT_EQ(damaged.code(), StatusCode::kCorrupt);
    EXPECT_THAT(damaged.message(), AllOf(HasSubstr("rclone:disk:" + path), HasSubstr("CRC32C of data bytes"),
                                         HasSubstr(file == ShardName(1) ? "\"weight\"" : "\"base\"")));
    fs::resize_file(path, 5000);
    EXPECT_THAT(verify().message(),
                HasSubstr("rclone:disk:" + path + ": expected " + std::to_string(good.size()) + " bytes, found 5000"));
    WriteWholeFile(path, good);
  }
  EXPECT_EQ(verify([](std::uint64_t /*done*/, std::uint64_t /*total*/) { return false; }).code(),
            StatusCode::kCancelled);
}

TEST_F(BucketTest, NoMoreThanTheBandwidthIsSent) {
  elements = kMany;
  const StoredCheckpoint one = Save(10);
  MirrorOptions options = ToStore();
  options.bandwidth = 40'000'000;

  const auto copied = OpenMirror(*queue_, options)->CopyNext([] { return false; });

  ASSERT_TRUE(copied.ok() && *copied) << copied.status();
  const double piece = 4 << 20;  // What waits no more.
  EXPECT_GE((*copied)->time.count(), (static_cast<double>((*copied)->bytes) - 2 * piece) / 40e6);
  EXPECT_THAT(Good(), ElementsAre(Name(one)));
}

TEST_F(BucketTest, AReplacedStepIsReplacedThere) {
  Save(10);
  const auto mirror = OpenMirror(*queue_, ToStore());
  ASSERT_TRUE(CopyAll(*mirror).ok());
  const StoredCheckpoint again = Save(10, 1);

  ASSERT_TRUE(CopyAll(*mirror).ok());

  EXPECT_THAT(Good(), ElementsAre(Name(again)));
}

TEST_F(BucketTest, AnotherRootsIsRefused) {
  Save(10);
  ASSERT_TRUE(CopyAll(*OpenMirror(*queue_, ToStore())).ok());
  MirrorCase other;
  other.elements = kFew;
  other.Save(10);
  MirrorOptions options = ToStore();
  options.root = other.root();

  const auto refused = Mirror::Open(*queue_, options);
  fs::remove(store_ + "/.writer");
  const auto without_id = Mirror::Open(*queue_, options);

  EXPECT_THAT(refused.status().message(), HasSubstr("is not a copy of that root: expected the id " + other.id()));
  EXPECT_THAT(without_id.status().message(), HasSubstr("it has no id, and step 10 there is not of the root"));
}

// As one that was left behind by a copy of the root, and is awake again.
TEST_F(BucketTest, OneThatAnotherHasTakenOverCommitsAndRetiresNothing) {
  const StoredCheckpoint first = Save(10);
  const auto behind = OpenMirror(*queue_, ToStore({.keep_last = 1}));
  ASSERT_TRUE(CopyAll(*behind).ok());
  const std::string copy = base() + "/copy-of-the-root";
  fs::copy(root(), copy, fs::copy_options::recursive);
  fs::remove_all(copy + "/.mirrors");
  MirrorOptions options = ToStore();
  options.root = copy;
  const auto next = OpenMirror(*queue_, options);
  Save(20);

  const auto copied = CopyAll(*behind);

  EXPECT_EQ(copied.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(copied.status().message(), HasSubstr("has another writer: "));
  EXPECT_EQ(behind->Check().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Good(), ElementsAre(Name(first)));
}

// Nothing answers at that address, not even with an error.
TEST_F(BucketTest, SilenceEndsByTheDeadline) {
  Save(10);
  const Port silent_port;
  ASSERT_EQ(::listen(silent_port.socket(), 100), 0);
  MirrorOptions options = ToServerAt(silent_port);
  options.rclone->stall = std::chrono::seconds(1);

  const auto silent = Mirror::Open(*queue_, options);

  EXPECT_EQ(silent.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(silent.status().message(), HasSubstr("listing s3://bucket/run: nothing happened for 1 s"));
  const auto record = ReadMirrorRecord(root(), MirrorId("s3://bucket/run"));
  ASSERT_TRUE(record);
  EXPECT_THAT(record->error, HasSubstr("nothing happened for 1 s"));
}

// rclone says nothing else until it gives up, which may take long.
TEST_F(BucketTest, WhyACallIsTriedAgainIsToldWhileItWaits) {
  Save(10);
  const Port silent_port;
  ASSERT_EQ(::listen(silent_port.socket(), 100), 0);
  ::setenv("RCLONE_TIMEOUT", "1s", 1);
  ::setenv("RCLONE_LOW_LEVEL_RETRIES", "2", 1);
  MirrorOptions options = ToServerAt(silent_port);
  for (const auto* name : {"RCLONE_TIMEOUT", "RCLONE_LOW_LEVEL_RETRIES"}) ::unsetenv(name);
  std::vector<std::string> heard;
  options.rclone->on_wait = [&](const std::string& why) { heard.push_back(why); };
  options.rclone->interrupted = [&] { return heard.size() >= 2; };

  const auto waiting = Mirror::Open(*queue_, options);

  EXPECT_EQ(waiting.status().code(), StatusCode::kCancelled) << waiting.status();
  ASSERT_EQ(heard.size(), 2U);
  EXPECT_EQ(heard[0], "listing s3://bucket/run");
  EXPECT_THAT(heard[1], AllOf(HasSubstr("listing s3://bucket/run: rclone says: low level retry 1/"),
                              HasSubstr("timeout"), Not(HasSubstr("DEBUG"))));
}

TEST_F(BucketTest, AnInterruptionEndsACall) {
  Save(10);
  MirrorOptions options = ToStore();
  options.rclone->interrupted = [] { return true; };

  EXPECT_EQ(Mirror::Open(*queue_, options).status().code(), StatusCode::kCancelled);
}

TEST(BucketAddress, ParsesWhatItKnows) {
  const auto remote = [](std::string_view text) {
    const auto parsed = BucketAddress::Parse(text);
    return parsed.ok() ? parsed->remote : std::string(StatusCodeName(parsed.status().code()));
  };
  EXPECT_EQ(remote("s3://my-bucket/runs/7/"), ":s3:my-bucket/runs/7");
  EXPECT_EQ(remote("gs://b/x"), ":gcs:b/x");
  EXPECT_EQ(remote("az://b"), ":azureblob:b");
  EXPECT_EQ(remote("rclone:far:a/b"), "far:a/b");
  EXPECT_EQ(remote("rclone:far:/a"), "far:/a");
  EXPECT_EQ(remote("ftp://b/x"), "Unsupported");
  for (const auto* secret : {"rclone::s3,secret_access_key=S3CRET:b", "s3://ID:S3CRET@b/x", "ftp://me:S3CRET@b"}) {
    EXPECT_THAT(BucketAddress::Parse(secret).status().message(), Not(HasSubstr("S3CRET")));
  }
  // With settings, which may be secrets; empty parts; parts that are not names.
  for (const auto* wrong :
       {"rclone:s3,secret_access_key=x:b", "rclone::s3,secret_access_key=x:b", "rclone:far", "s3://", "s3:///x",
        "s3://user:password@b/x", "s3://b//x", "s3://b/../x", "s3://b/x\n", "rclone:far:"}) {
    EXPECT_EQ(remote(wrong), "InvalidArgument") << wrong;
  }
}

TEST(WithoutSecrets, LeavesNothingThatGrantsAccess) {
  const std::vector<std::string> environment = {"AWS_SECRET_ACCESS_KEY=abc+def/ghi", "RCLONE_S3_ENV_AUTH=true",
                                                "HOME=/home/me", "SSH_AUTH_SOCK=/run/x"};

  const std::string text = WithoutSecrets(
      "Put \"http://user:word@host:80/b/x?X-Amz-Signature=0123\": abc+def/ghi is wrong, true, /home/me, /run/x",
      environment);

  EXPECT_EQ(text, "Put \"http://***@host:80/b/x?***\": *** is wrong, true, /home/me, /run/x");
}

}  // namespace
}  // namespace cairn
