import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_store.config.load import acting_settings, load_name_server_settings, load_settings
from broker_store.config.name_server import NameServerSettings
from broker_store.config.other_keys import REFUSED, WITHOUT_EFFECT, WITHOUT_EFFECT_BY_REASON
from broker_store.config.properties import parse_properties, read_properties
from broker_store.config.store import StoreSettings
from broker_store.errors import ConfigError
from tests.support.stores import GOLDEN

APACHE = GOLDEN / "broker-config-5.3.3.properties"


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o604, 0o622])
def test_a_secret_that_other_users_may_read_is_noted(tmp_path, mode):
    key, user = "initAuthenticationUser", '{"username": "root", "password": "the-secret-of-root"}'
    path = tmp_path / "broker.conf"
    path.write_text("autoCreateTopicEnable=false\n")
    path.chmod(mode)
    assert load_settings(path).notes == ()
    path.chmod(0o600)
    path.write_text(f"authenticationEnabled=true\n{key}={user}\n")
    path.chmod(mode)
    notes = load_settings(path).notes
    assert len(notes) == (1 if mode & 0o077 else 0)
    assert all(f"{mode:o} lets other users" in note and "the-secret" not in note for note in notes)
    (note,) = load_settings(None, {"authenticationEnabled": "true", key: user}).notes
    assert note.startswith(f"{key} is on the command line") and "the-secret" not in note


def test_every_key_of_a_real_broker_is_classified_once():
    acting = {field.metadata["setting"].key for _, field in acting_settings()}
    for key in read_properties(APACHE):
        assert sum((key in acting, key in REFUSED, key in WITHOUT_EFFECT)) == 1, key
    assert len(WITHOUT_EFFECT) == sum(len(keys.split()) for keys in WITHOUT_EFFECT_BY_REASON.values())


def test_a_real_brokers_file_is_read_as_it_is():
    settings = load_settings(APACHE)
    assert (
        settings.store.mapped_file_size_commit_log,
        settings.store.max_index_num,
        settings.store.file_reserved_time,
    ) == (
        1048576,
        4000,
        48,
    )
    assert (settings.broker.listen_port, settings.broker.namesrv_addr) == (33911, "127.0.0.1:33876")
    assert settings.store.store_path_commit_log == Path("store/commitlog")
    assert any(note.startswith("timerEnableDisruptor has no effect") for note in settings.notes)


def test_defaults_are_apaches():
    given = read_properties(APACHE)
    changed = {  # what the golden file sets, and where ours differs for a reason given in the setting
        "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum", "listenPort", "fileReservedTime",
        "storePathRootDir", "storePathCommitLog", "namesrvAddr", "flushConsumeQueueThoroughInterval",
        "haListenPort", "inSyncReplicas", "slaveReadEnable", "haTransferBatchSize",
    }  # fmt: skip
    for group, field in acting_settings():
        key = field.metadata["setting"].key
        if key in given and key not in changed and group != "Name server":
            assert (str(field.default).lower() if field.type == "bool" else str(field.default)) == given[
                key
            ], key
    assert StoreSettings().mapped_file_size_commit_log == 1073741824
    assert StoreSettings().mapped_file_size_consume_queue == 6_000_000


def _snake(key: str) -> str:
    """Return the attribute for a key: checkCRCOnRecover -> check_crc_on_recover, brokerIP1 -> broker_ip1."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", key).lower()


def test_attributes_are_the_keys_in_snake_case():
    for _, field in acting_settings():
        key = field.metadata["setting"].key
        assert re.sub("[_.]", "", key).lower() == field.name.replace("_", ""), key
        assert field.name == field.name.lower()
        assert _snake(key.replace(".", "_")) == field.name


def test_the_name_server_in_the_process_takes_its_keys_too_but_not_the_brokers_port():
    given = {"orderMessageEnable": "true", "listenPort": "20911", "scanNotActiveBrokerInterval": "5000"}
    settings = load_settings(None, given, name_server={"listenPort": "19876"})
    assert settings.name_server == NameServerSettings(
        listen_port=19876, scan_not_active_broker_interval=5000, order_message_enable=True
    )
    assert (settings.broker.listen_port, settings.notes) == (20911, ())


def test_overrides_win_over_the_file_and_the_command_line_over_both(tmp_path):
    conf = tmp_path / "broker.conf"
    conf.write_text("maxMessageSize=100\nstorePathRootDir=/from/file\nbrokerName=n1")
    settings = load_settings(
        conf, {"maxMessageSize": "200"}, store_root=tmp_path / "s", default_store_root=tmp_path / "d"
    )
    assert (settings.store.max_message_size, settings.broker.broker_name) == (200, "n1")
    assert settings.store.store_path_root_dir == tmp_path / "s"
    assert load_settings(conf, default_store_root=tmp_path / "d").store.store_path_root_dir == Path(
        "/from/file"
    )
    assert (
        load_settings(default_store_root=tmp_path / "d").store.store_path_commit_log
        == tmp_path / "d" / "commitlog"
    )


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("flushDiskTyp", "flushDiskType"),
        ("flush_disk_type", "flushDiskType"),
        ("FLUSHDISKTYPE", "flushDiskType"),
        ("maxMesageSize", "maxMessageSize"),
        ("xyzzy", None),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(key, suggestion):
    with pytest.raises(ConfigError, match="there is no such setting") as raised:
        load_settings(overrides={key: "1"})
    assert raised.value.key == key
    assert (
        (f"did you mean {suggestion}?" in str(raised.value))
        if suggestion
        else ("did you mean" not in str(raised.value))
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("maxMessageSize", "4m"),
        ("maxMessageSize", ""),
        ("maxMessageSize", "-1"),
        ("mappedFileSizeCommitLog", "99999999999"),
        ("messageIndexEnable", "yes"),
        ("flushDiskType", "async"),
        ("deleteWhen", "24"),
        ("deleteWhen", ";"),
        ("brokerName", "../x"),
        ("listenPort", "70000"),
        ("namesrvAddr", "localhost"),
        ("messageDelayLevel", "1s 5x"),
        ("storePathRootDir", ""),
        ("storePathCommitLog", "/a,/b"),
        ("maxIndexNum", "99999999999999999999"),
        ("brokerRole", "MASTER"),
    ],
)
def test_a_wrong_value_is_refused_with_key_and_value(key, value):
    with pytest.raises(ConfigError) as raised:
        load_settings(overrides={key: value})
    assert raised.value.key == key
    assert f"setting {key}={value}" in str(raised.value)


def test_an_index_file_larger_than_a_map_is_refused():
    with pytest.raises(ConfigError, match="index file would have"):
        StoreSettings(max_hash_slot_num=500_000_000, max_index_num=100_000_000)


CONTROLLED = {"enableControllerMode": "true", "controllerAddr": "127.0.0.1:9878", "haListenPort": "10912"}


def test_a_slave_acts_or_is_elected_and_not_both():
    with pytest.raises(ConfigError, match="in controller mode a slave becomes the master"):
        load_settings(overrides=CONTROLLED | {"enableSlaveActingMaster": "true"})


# What replication does not do here, or not without other settings.
FOR_REPLICAS = [
    ("minInSyncReplicas", "2"), ("totalReplicas", "3"), ("allAckInSyncStateSet", "true"), ("enableControllerMode", "true"),
    ("duplicationEnable", "true"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), FOR_REPLICAS)
def test_what_replication_does_not_do_stops_the_start(key, value):
    with pytest.raises(ConfigError) as raised:
        load_settings(overrides={key: value})
    sentence = str(raised.value)
    assert sentence.startswith(f"setting {key}={value}: ") and (
        "set " in sentence or "leave it out" in sentence
    )


def test_settings_for_one_broker_start_without_a_note():
    one_copy = {
        "inSyncReplicas": "1",
        "minInSyncReplicas": "1",
        "totalReplicas": "1",
        "allAckInSyncStateSet": "false",
        "brokerRole": "ASYNC_MASTER",
        # fmt: skip
        "enableControllerMode": "false",
        "haMasterAddress": "",
        "duplicationEnable": "false",
    }
    assert load_settings(overrides=one_copy).notes == ()
    (note,) = load_settings(overrides={"haFlowControlEnable": "true"}).notes
    assert "brokerRole or the controller gives them" in note


@pytest.mark.parametrize("role", ["SLAVE", "SYNC_MASTER"])
def test_each_role_starts(role):
    settings = load_settings(overrides={"brokerRole": role, "brokerId": "1" if role == "SLAVE" else "0"})
    assert settings.store.broker_role == role and settings.notes == ()


def test_a_slave_needs_an_id():
    with pytest.raises(ConfigError, match="a slave has an id above 0"):
        load_settings(overrides={"brokerRole": "SLAVE"})


@pytest.mark.parametrize("number", ["1", "7"])
def test_a_master_has_id_0_whatever_is_set(number):
    """With another id it was READY, and no client could send: clients send to id 0."""
    settings = load_settings(overrides={"brokerId": number})
    assert settings.broker.broker_id == 0 and settings.notes[0].startswith(
        f"brokerId={number}: a master has id 0"
    )
    assert load_settings(overrides={"brokerId": number, "brokerRole": "SLAVE"}).broker.broker_id == int(
        number
    )
    assert load_settings(overrides={"brokerId": "0"}).notes == ()


@pytest.mark.parametrize("key", [key for key in REFUSED if "" not in REFUSED[key][0]])
def test_what_this_broker_does_not_do_is_refused_unless_it_is_off(key):
    off = REFUSED[key][0][0]
    assert load_settings(overrides={key: off}).notes == ()
    with pytest.raises(ConfigError) as raised:
        load_settings(overrides={key: "true"})
    assert raised.value.reason == REFUSED[key][1]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"flushDiskType": "SYNC_FLUSH"}, "with SYNC_FLUSH a send is answered when it is on the disk"),
        ({"brokerRole": "SLAVE", "brokerId": "1"}, "a slave copies its master's log into its files"),
        (CONTROLLED, "and enableControllerMode makes slaves of masters"),
    ],
)
def test_the_transient_store_pool_is_for_a_master_with_async_flush(more, why):
    with pytest.raises(ConfigError, match=f"for a master with flushDiskType=ASYNC_FLUSH[:,] {why}"):
        load_settings(overrides={"transientStorePoolEnable": "true", **more})
    assert load_settings(overrides=more).notes == ()
    settings = load_settings(overrides={"transientStorePoolEnable": "true", "brokerRole": "SYNC_MASTER"})
    assert settings.store.transient_store_pool_enable and settings.notes == ()


def test_a_queue_file_is_rounded_up_to_whole_units():
    assert (
        load_settings(overrides={"mappedFileSizeConsumeQueue": "2001"}).store.mapped_file_size_consume_queue
        == 2020
    )


def test_ratios_are_bounded_as_in_apache_and_fractions_are_per_cent():
    store = load_settings(
        overrides={
            "diskMaxUsedSpaceRatio": "0.8",
            "diskSpaceWarningLevelRatio": "99",
            "diskSpaceCleanForciblyRatio": "5",
        }
    ).store
    assert (
        store.disk_max_used_space_ratio,
        store.disk_space_warning_level_ratio,
        store.disk_space_clean_forcibly_ratio,
    ) == (80, 90, 30)


def test_derived_values_are_ready_to_use():
    store = load_settings(
        overrides={"deleteWhen": "04; 16", "flushDiskType": "SYNC_FLUSH", "messageDelayLevel": "1s 2m 1h 1d"}
    ).store
    assert store.delete_hours == {4, 16}
    assert store.delay_levels_ms == (1000, 120_000, 3_600_000, 86_400_000)


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        StoreSettings().max_message_size = 5


def test_values_given_in_code_are_checked_too():
    for wrong in (
        {"max_message_size": "5"},
        {"message_index_enable": 1},
        {"flush_disk_type": None},
        {"max_index_num": True},
    ):
        with pytest.raises(ConfigError):
            StoreSettings(**wrong)


def test_the_name_server_has_settings_of_its_own():
    assert NameServerSettings().listen_port == 9876
    assert load_name_server_settings(None, {"listenPort": "1", "orderMessageEnable": "true"}).listen_port == 1
    assert (
        load_settings(overrides={"listenPort": "5"}, name_server={"listenPort": "6"}).name_server.listen_port
        == 6
    )
    with pytest.raises(ConfigError, match="no such setting"):
        load_name_server_settings(None, {"flushDiskType": "SYNC_FLUSH"})


@pytest.mark.parametrize(
    ("text", "where"), [(b"a=1\nb=\x1b[31m", "line 2 has the byte 27"), (b"\x7fELF\0", "line 1 has")]
)
def test_a_file_that_is_no_text_is_refused_by_its_first_byte_that_is_none(text, where, tmp_path):
    (tmp_path / "broker.conf").write_bytes(text)
    with pytest.raises(ConfigError, match=where):
        read_properties(tmp_path / "broker.conf")


def test_the_properties_format_is_javas(tmp_path):
    text = (
        "# c\n! c\n\na=1\n b : 2 \nc 3\nd\\=x=4\nlong=one, \\\n   "
        "two\nu=\\u0041\\t|\\q\nempty\na=5\r\nlast=\\\\"
    )
    expected = {
        "a": "5",
        "b": "2",
        "c": "3",
        "d=x": "4",
        "long": "one, two",
        "u": "A\t|q",
        "empty": "",
        "last": "\\",
    }
    assert parse_properties(text) == expected
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(tmp_path / "absent.conf")


@given(st.text(max_size=80))
def test_any_text_is_read_as_properties(text):
    assert all(isinstance(key, str) for key in parse_properties(text))
