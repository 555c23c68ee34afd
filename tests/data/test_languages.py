"""Codes of languages in every spelling, against ISO 639, and names of files."""

import itertools
import re

import iso639
import pytest

from xlme_jax.data import cldr_config, file_languages, languages
from xlme_jax.data.benchmarks.parallel_sets import TATOEBA_CODES

# FLORES-200's codes (NLLB Team, 2022, Table 1).
FLORES = """
    ace_Arab ace_Latn acm_Arab acq_Arab aeb_Arab afr_Latn ajp_Arab aka_Latn als_Latn amh_Ethi
    apc_Arab arb_Arab arb_Latn ars_Arab ary_Arab arz_Arab asm_Beng ast_Latn awa_Deva ayr_Latn
    azb_Arab azj_Latn bak_Cyrl bam_Latn ban_Latn bel_Cyrl bem_Latn ben_Beng bho_Deva bjn_Arab
    bjn_Latn bod_Tibt bos_Latn bug_Latn bul_Cyrl cat_Latn ceb_Latn ces_Latn cjk_Latn ckb_Arab
    crh_Latn cym_Latn dan_Latn deu_Latn dik_Latn dyu_Latn dzo_Tibt ell_Grek eng_Latn epo_Latn
    est_Latn eus_Latn ewe_Latn fao_Latn fij_Latn fin_Latn fon_Latn fra_Latn fur_Latn fuv_Latn
    gaz_Latn gla_Latn gle_Latn glg_Latn grn_Latn guj_Gujr hat_Latn hau_Latn heb_Hebr hin_Deva
    hne_Deva hrv_Latn hun_Latn hye_Armn ibo_Latn ilo_Latn ind_Latn isl_Latn ita_Latn jav_Latn
    jpn_Jpan kab_Latn kac_Latn kam_Latn kan_Knda kas_Arab kas_Deva kat_Geor kaz_Cyrl kbp_Latn
    kea_Latn khk_Cyrl khm_Khmr kik_Latn kin_Latn kir_Cyrl kmb_Latn kmr_Latn knc_Arab knc_Latn
    kon_Latn kor_Hang lao_Laoo lij_Latn lim_Latn lin_Latn lit_Latn lmo_Latn ltg_Latn ltz_Latn
    lua_Latn lug_Latn luo_Latn lus_Latn lvs_Latn mag_Deva mai_Deva mal_Mlym mar_Deva min_Arab
    min_Latn mkd_Cyrl mlt_Latn mni_Beng mos_Latn mri_Latn mya_Mymr nld_Latn nno_Latn nob_Latn
    npi_Deva nso_Latn nus_Latn nya_Latn oci_Latn ory_Orya pag_Latn pan_Guru pap_Latn pbt_Arab
    pes_Arab plt_Latn pol_Latn por_Latn prs_Arab quy_Latn ron_Latn run_Latn rus_Cyrl sag_Latn
    san_Deva sat_Olck scn_Latn shn_Mymr sin_Sinh slk_Latn slv_Latn smo_Latn sna_Latn snd_Arab
    som_Latn sot_Latn spa_Latn srd_Latn srp_Cyrl ssw_Latn sun_Latn swe_Latn swh_Latn szl_Latn
    tam_Taml taq_Latn taq_Tfng tat_Cyrl tel_Telu tgk_Cyrl tgl_Latn tha_Thai tir_Ethi tpi_Latn
    tsn_Latn tso_Latn tuk_Latn tum_Latn tur_Latn twi_Latn tzm_Tfng uig_Arab ukr_Cyrl umb_Latn
    urd_Arab uzn_Latn vec_Latn vie_Latn war_Latn wol_Latn xho_Latn ydd_Hebr yor_Latn yue_Hant
    zho_Hans zho_Hant zsm_Latn zul_Latn
""".split()  # noqa: SIM905
SPELLINGS = {
    "sw": "sw swa swh SW swh_Latn swh-Latn swa_Latn sw_KE sw-TZ sw-Latn-KE sw_Latn",
    "zh": "zh zho chi cmn zh-Hans zh_hans zho_Hans cmn_Hans zho_Hani zh_CN zh-SG zh-Hans-CN",
    "zh-Hant": "zh-Hant zh_hant zho_Hant zh_TW zh-tw zh-HK zh_MO cmn_Hant zh-Hant-TW",
    "pt": "pt por pt_br pt-BR por_Latn pt-PT por_Latn_braz1246",
    "he": "he heb iw iw_IL",
    "id": "id ind in in_ID",
    "ro": "ro ron rum mo mol",
    "sh": "sh hbs hbs_Latn sh_Latn",
    "no": "no nor nb nob nb_NO nob_Latn",
    "nn": "nn nno nno_Latn nn-NO",
    "tl": "tl tgl fil fil_Latn",
    "sr": "sr srp scc sr_Cyrl sr@cyrillic sr-RS",
    "sr-Latn": "sr-Latn srp_Latn sr@latin sr_ME",
    "lzh": "lzh zh_classical zh-classical",
    "be": "be bel be-tarask be_x_old be-x-old",
    "hi_rom": "hi_rom hi-Latn hin_Latn",
    "my_zaw": "my_zaw my-Qaag mya_Qaag",
    "en": "en eng en-US en_GB simple en-001 eng_Latn",
    "es": "es spa es-419 es_MX",
    "uz": "uz uzn uzb uz_Latn",
    "uz-Cyrl": "uz-Cyrl uzn_Cyrl uz@cyrillic",
    "ca": "ca cat ca@valencia ca-valencia cat_Latn_vale1252",
    "nah": "nah",
    "de": "de deu ger de-1996 deu_1901",
    "ku": "ku kur kmr kmr_Latn ku_TR",
    "jv": "jv jav jw jav_Latn",
    "ar": "ar ara arb arb_Arab ar_EG",
    "fa": "fa fas per pes pes_Arab fa_IR",
    "az": "az aze azj azj_Latn",
    "sq": "sq sqi alb als als_Latn",
    "et": "et est ekk ekk_Latn",
    "lv": "lv lav lvs lvs_Latn",
    "mg": "mg mlg plt plt_Latn",
    "mn": "mn mon khk khk_Cyrl",
    "ms": "ms msa may zsm zsm_Latn",
    "ne": "ne nep npi npi_Deva",
    "or": "or ori ory ory_Orya",
    "ps": "ps pus pbt pbt_Arab",
    "yi": "yi yid ji ydd ydd_Hebr",
    "gn": "gn grn gug gug_Latn",
    "ay": "ay aym ayr ayr_Latn",
    "om": "om orm gaz gaz_Latn",
    "kr": "kr kau knc knc_Latn",
    "lah": "lah pnb pnb_Arab",
    "qu": "qu que quz quz_Latn",
    "ff": "ff ful fuc",
}
# Codes that stay two languages: data sets have both, or their texts cannot be read as one.
TWO_LANGUAGES = {
    "zh_Hant zh_Hans": "scripts; vocabularies and benchmarks have each",
    "sr_Cyrl sr_Latn": "scripts",
    "hi hi_rom": "scripts; CC-100 has both",
    "knc_Latn knc_Arab": "scripts; FLORES has both",
    "zh yue": "member of a macrolanguage that is not its default; FLORES has both",
    "zh lzh": "Classical Chinese is no member of Chinese",
    "ar arz": "member that is not the default; FLORES has both",
    "ar ary": "as Egyptian Arabic",
    "ku ckb": "ku is Kurmanji (CLDR); FLORES has both, in different scripts",
    "fa prs": "member that is not the default; FLORES has both",
    "az azb": "the default is North Azerbaijani; FLORES has both",
    "no nn": "two written standards; no means Bokmål in CC-100",
    "sh hr": "individual languages; CC-100 has all four",
    "sh sr": "as Croatian",
    "sw swc": "Congo Swahili is not the default",
    "ms zlm": "the default is Standard Malay",
    "ms id": "Indonesian has a code of two letters",
    "et vro": "the default is Standard Estonian",
    "lv ltg": "the default is Standard Latvian; FLORES has both",
    "qu quy": "the default is Cusco Quechua (CLDR); AmericasNLI and FLORES have Ayacucho Quechua",
    "ff fuv": "the default is Pulaar (CLDR); FLORES has Nigerian Fulfulde",
    "lah pa": "Western Punjabi is no member of Punjabi",
    "ak tw": "both have a code of two letters; FLORES has both",
    "pa pa_PK": "scripts",
}
OTHER_WORDS = """
    sw_clean en_meta swh_Latn_removed trg_ english swahili clean noisy und mul zxx mis qaa x e
    EN_meta en-- -en en. txt.gz zh_foo en_Foot en-XX 12 ids3 readme
""".split()  # noqa: SIM905


def test_every_code_of_iso_639_has_one_tag_that_finds_it_again():
    special = {"mis", "mul", "und", "zxx"}
    count = 0
    for row in iso639.ALL_LANGUAGES:
        codes = {row.part1, row.part2b, row.part2t, row.part3} - {None}
        if row.part3 in special:
            assert not any(map(languages.is_language, codes))
            continue
        tags = {languages.canonical(code) for code in codes}
        (tag,) = tags
        assert languages.find(tag) == languages.find(row.part3), row
        assert languages.english_name(tag) and len(languages.script(tag)) == 4
        count += 1
    assert count > 7_900


def test_codes_of_two_letters_are_preferred():
    kept = {"nb": "no"}  # XLM-R's Norwegian.
    for row in iso639.ALL_LANGUAGES:
        if row.part1 and row.part3 != "fil":
            tag = kept.get(row.part1, row.part1)
            assert languages.canonical(row.part3) == languages.canonical(row.part1) == tag


def test_xlmrs_codes_are_canonical():
    assert len(languages.XLMR) == 100
    assert set(languages.XLMR) == {*cldr_config.LANGUAGES, *cldr_config.WITHOUT_CLDR}
    for code in languages.XLMR:
        assert languages.find(code).tag == languages.canonical(code) == code


def test_languages_of_flores_and_tatoeba_differ():
    assert len(FLORES) == 204
    tags = {code: languages.canonical(code) for code in FLORES}
    # North and South Levantine are one code since ISO 639-3 merged ajp into apc in 2023.
    assert len(set(tags.values())) == 203 and tags["ajp_Arab"] == tags["apc_Arab"]
    for code, tag in tags.items():
        of_code = code.split("_")[1]
        assert languages.script(tag) == {"Hang": "Kore"}.get(of_code, of_code)
    for code, theirs in TATOEBA_CODES.items():
        assert languages.canonical(theirs) == languages.canonical(code) == code
    assert languages.canonical("ber") == "ber"


@pytest.mark.parametrize("tag", SPELLINGS)
def test_spellings_of_a_language(tag):
    for code, other in itertools.product(SPELLINGS[tag].split(), repeat=2):
        assert languages.canonical(code) == tag
        assert languages.same_language(code, other)


def test_languages_differ():
    for tag, other in itertools.combinations(SPELLINGS, 2):
        assert not languages.same_language(tag, other)
    for pair in TWO_LANGUAGES:
        assert not languages.same_language(*pair.split()), pair
    assert not languages.same_language("xx", "sw")
    assert languages.same_language("xx", "xx")


@pytest.mark.parametrize("word", OTHER_WORDS)
def test_other_words_are_no_languages(word):
    assert not languages.is_language(word)
    with pytest.raises(ValueError, match="is not a language code of ISO 639"):
        languages.canonical(word)
    assert languages.tag_or_code(word) == word


def test_the_nearest_languages_are_named():
    for word in ("sw_clean", "swahili", "Swahilli", "swh_Latn_removed"):
        with pytest.raises(ValueError, match=r"nearest: sw \(Swahili\)"):
            languages.canonical(word)
    # Codes of countries, and the beginning of names.
    meant = {"cz": "cs (Czech)", "kz": "ru (Russian), kk (Kazakh)"}
    meant |= {"po": "pl (Polish), pt (Portuguese)"}
    for code, names in meant.items():
        with pytest.raises(ValueError, match=re.escape(f"nearest: {names}") + "$"):
            languages.canonical(code)


def test_scripts_and_names():
    scripts = {"th": "Thai", "ja": "Jpan", "zh_TW": "Hant", "yue": "Hant", "prs": "Arab"}
    scripts |= {"pa_PK": "Arab", "az_IR": "Arab", "bod_Tibt": "Tibt", "jv-Java": "Java"}
    scripts |= {"sd_Deva": "Deva", "eml": "Zzzz", "?": "Zzzz"}
    assert {code: languages.script(code) for code in scripts} == scripts
    assert languages.english_name("zho_Hant") == "Chinese (Traditional)"
    assert languages.english_name("tar") == "Central Tarahumara"
    assert languages.english_name("sw_clean") == "sw_clean"


def test_words_of_corpora_are_languages_with_a_script_or_among_many_codes():
    names = ["en", "src", "bin", "raw", "log", "src_Latn", "tar", "sh"]
    tags = file_languages.tags_of_names(names)
    assert tags == {"en": "en", "src_Latn": "sc", "tar": "tar", "sh": "sh"}
    many = "deu eng fra swh spa ita por ron hun fin".split()  # noqa: SIM905
    assert set(file_languages.tags_of_names([*names, *many])) == {*names, *many}
    suffixes = ["en", "swh", "sym", "tar", "sh", "bak", "new", "fr", "id"]
    assert set(file_languages.tags_of_suffixes(suffixes)) == {"en", "swh", "fr", "id"}


def test_codes_are_spelled_as_what_there_is():
    available = ["en", "swh_Latn", "zh"]
    codes = ["zho_Hans", "swa", "xx", "fr"]
    assert languages.spelled_as(codes, available) == ("zh", "swh_Latn", "xx", "fr")
    assert languages.spelled_as(["sw", "swa"], available) == ("swh_Latn",)


def test_of_several_varieties_the_named_one_is_chosen():
    available = ["en-US", "en-GB", "en", "apc-x-ajp", "apc"]
    chosen = {"eng": "en", "en": "en", "en_GB": "en-GB", "eng_US": "en-US", "en-NZ": "en"}
    chosen |= {"apc_Arab": "apc", "ajp_Arab": "apc-x-ajp", "ajp": "apc-x-ajp"}
    for code, name in chosen.items():
        assert languages.spelled_as([code], available) == (name,)
