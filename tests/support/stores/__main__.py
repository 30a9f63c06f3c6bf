from tests.support.stores import write_archive

if __name__ == "__main__":
    print(write_archive())
