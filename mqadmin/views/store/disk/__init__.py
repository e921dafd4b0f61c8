"""How full the disk is, when it will be fuller, and which groups lose messages by what is deleted then."""

from mqadmin.views.view import Rest, Tab, View

VIEW = View(__name__, Rest("Store", "inside_disk", "/store"), tabs=(Tab("disk", "Disk", 60),))
